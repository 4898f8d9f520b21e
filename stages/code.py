"""Stage `code`: what decides how a method trains, as one small file that its cells depend on.

DVC reads and writes its whole lock file for every cell. Listing some fifteen source files and all switches in each of
a hundred cells makes that file so large that DVC takes as long as the training, so the cells share this fingerprint.

Example: python stages/code.py fixmatch
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

# A queued experiment must run the code of its own workspace, not that of the editable install.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import typer

from safeecgmatch.config import load_params, switches
from safeecgmatch.errors import UserError
from safeecgmatch.files import sha256_of, write_json

ROOT = Path(__file__).resolve().parents[1]


def fingerprint(method: str) -> dict[str, object]:
    """Hashes of every source file that a cell of this method imports, and the switches of the protocol in force."""
    values = switches(method, load_params().protocol, {})
    importlib.import_module("safeecgmatch.training.session")
    importlib.import_module(f"safeecgmatch.methods.{values.get('module', method)}")
    loaded = [module.__file__ for name, module in sys.modules.items() if name.startswith("safeecgmatch.")]
    files = [Path(name) for name in loaded if name] + [ROOT / "stages" / "train.py"]
    return {
        "method": method,
        "switches": values,
        "files": {str(file.relative_to(ROOT)): sha256_of(file) for file in sorted(files)},
    }


def main(method: str = typer.Argument(help="The method's name, such as fixmatch.")) -> None:
    """Write data/code/METHOD.json."""
    try:
        write_json(Path("data/code") / f"{method}.json", fingerprint(method))
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    typer.run(main)
