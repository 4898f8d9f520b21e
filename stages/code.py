"""Stage `code`: for each method, what decides how it trains, as one small file that its cells depend on.

An edit of engine/ or methods/ runs this stage again; cells are stale only where the fingerprint that it writes changed.
Example: python stages/code.py
"""

from __future__ import annotations

import sys
from pathlib import Path

# A queued experiment must run the code of its own workspace, not that of the editable install.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import typer

from safeecgmatch.config import load_params
from safeecgmatch.engine.fingerprint import method_of
from safeecgmatch.errors import UserError
from safeecgmatch.files import write_json
from safeecgmatch.protocols import known_methods


def main() -> None:
    """Write data/code/METHOD.json for every method that exists."""
    try:
        params = load_params()
        for method in known_methods():
            write_json(Path("data/code") / f"{method}.json", method_of(params, method))
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    typer.run(main)
