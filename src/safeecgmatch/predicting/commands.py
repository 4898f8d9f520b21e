"""The command `safeecgmatch predict`; slow imports stand inside it."""

from __future__ import annotations

import sys
from pathlib import Path

import typer


def predict(
    cell: str = typer.Argument(metavar="CELL", help="A finished cell: its path below runs/, or a folder."),
    records: list[str] = typer.Argument(metavar="RECORD...", help="WFDB records, folders of them, or zips."),
    accept: float | None = typer.Option(
        None, "--accept", min=0.0, max=1.0, help="Share of seen validation records to accept instead of 0.95."
    ),
    output: Path | None = typer.Option(None, "--output", "-o", help="Write all answers to a .csv or .json file."),
    plot: Path | None = typer.Option(None, "--plot", help="Draw a 12-lead page per record into this folder."),
    labels: bool = typer.Option(
        False, "--labels", help="The folders or zips are archives with labels: also say how good the refusal is."
    ),
) -> None:
    """Classify 12-lead ECGs with a finished cell, and refuse those that belong to no class it has seen.

    Prints one line per record: predicted class, calibrated confidence, unseen score, and seen or unseen. Records may
    have any sampling rate of 50 Hz or more and their leads in any order. A record that cannot be used gets one
    sentence, the others go on, and the exit status is 1.

    \b
    Examples:
      safeecgmatch predict ptbxl/safeecgmatch/60/1 my/records --output answers.csv
      safeecgmatch predict ptbxl/safeecgmatch/60/1 a.hea b.hea --accept 0.9 --plot pages
      safeecgmatch predict ptbxl/safeecgmatch/60/1 data/raw/ptbxl.phantom --labels
    """
    from safeecgmatch.predicting import running
    from safeecgmatch.predicting.trained import Trained, find_cell

    trained = Trained.open(find_cell(cell), accept)
    if running.predict(trained, records, output, plot, labels, sys.stdout):
        raise typer.Exit(1)
