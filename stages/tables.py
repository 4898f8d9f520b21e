"""Stage `tables`: tables, figures and the page of the study, from what `evaluate` wrote.

Example: python stages/tables.py
"""

from __future__ import annotations

import sys
from pathlib import Path

# A queued experiment must run the code of its own workspace, not that of the editable install.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import typer

from safeecgmatch.config import load_params
from safeecgmatch.errors import UserError
from safeecgmatch.reporting.report import write_report
from safeecgmatch.reporting.study import report_folder


def main() -> None:
    try:
        params = load_params()
        write_report(params, report_folder(params))
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    typer.run(main)
