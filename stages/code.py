"""Stage `code`: what decides how each method trains, and what each stage runs, as small files that others depend on.

An edit below src/ or stages/ runs this stage again; the others are stale only where the file written for them changed.
Example: python stages/code.py
"""

from __future__ import annotations

import sys
from pathlib import Path

# A queued experiment must run the code of its own workspace, not that of the editable install.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import typer

from safeecgmatch.config import load_params
from safeecgmatch.engine.fingerprint import method_of, stage_of
from safeecgmatch.errors import UserError
from safeecgmatch.files import write_json
from safeecgmatch.protocols import known_methods

STAGES = ("download", "filter", "split", "evaluate", "tables")  # train follows its method


def main() -> None:
    """Write data/code/methods/METHOD.json for every method that exists, and data/code/stages/STAGE.json."""
    try:
        params = load_params()
        for method in known_methods():
            write_json(Path("data/code/methods") / f"{method}.json", method_of(params, method))
        for stage in STAGES:
            write_json(Path("data/code/stages") / f"{stage}.json", stage_of(Path("stages") / f"{stage}.py"))
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    typer.run(main)
