"""The commands `safeecgmatch predict` and `safeecgmatch model`; slow imports are inside them.

Beside cli.py and in no package, because these commands join predicting/ and tracking/.
"""

from __future__ import annotations

import sys
from pathlib import Path

import typer

model_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Make a model of a finished cell: one that MLflow can serve, or a folder that may be published.

    \b
    Examples:
      safeecgmatch model log ptbxl/safeecgmatch/60/1
      safeecgmatch model export ptbxl/safeecgmatch/60/1 models/mine
    """,
)


def predict(
    cell: str = typer.Argument(metavar="CELL", help="A finished cell, as its path below runs/, or a folder."),
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
    """Classify 12-lead ECGs with a finished cell or a model, and refuse those that belong to no class it has seen.

    Prints one line per record: predicted class, calibrated confidence, unseen score, and seen or unseen. Records may
    have any sampling rate of 50 Hz or more and their leads in any order. A record that cannot be used gets one
    sentence, the others go on, and the exit status is 1.

    \b
    Examples:
      safeecgmatch predict models/ptbxl-safeecgmatch my/records --output answers.csv
      safeecgmatch predict ptbxl/safeecgmatch/60/1 a.hea b.hea --accept 0.9 --plot pages
      safeecgmatch predict ptbxl/safeecgmatch/60/1 data/raw/ptbxl.phantom --labels
    """
    from safeecgmatch.predicting import running
    from safeecgmatch.predicting.trained import Trained, find_cell

    trained = Trained.open(find_cell(cell), accept)
    if running.predict(trained, records, output, plot, labels, sys.stdout):
        raise typer.Exit(1)


@model_app.command(short_help="Store a finished cell in MLflow as a servable model.")
def log(
    cell: str = typer.Argument(metavar="CELL", help="A finished cell, as its path below runs/."),
    name: str | None = typer.Option(None, "--name", help="The registered model's name; by default made of the cell's."),
) -> None:
    """Store a finished cell in the MLflow run that trained it, as a pyfunc model, and register it under a name.

    \b
    Examples:
      safeecgmatch model log ptbxl/safeecgmatch/60/1
      safeecgmatch model log ptbxl/safeecgmatch/60/1 --name ward-3
    """
    from safeecgmatch.tracking.model import log_model
    from safeecgmatch.tracking.store import one_sentence

    with one_sentence():
        logged = log_model(cell, name)
    print(f"{logged.name} version {logged.version} in run {logged.run_id}.")
    print(f"Serve it: {logged.serve_command}")


@model_app.command(short_help="Write a finished cell as a folder that may be published.")
def export(
    cell: str = typer.Argument(metavar="CELL", help="A finished cell: its path below runs/, or a folder."),
    target: Path = typer.Argument(metavar="DEST", help="The folder to write; an older export there is replaced."),
) -> None:
    """Write a finished cell as a folder with its weights, config, aggregate numbers and a model card.

    `safeecgmatch predict DEST RECORD...` gives the answers of the cell. No record's prediction is in the folder, so
    --accept knows only the shares that the card lists.

    \b
    Examples:
      safeecgmatch model export ptbxl/safeecgmatch/60/4 models/ptbxl-safeecgmatch
    """
    from safeecgmatch.predicting.publishing import export
    from safeecgmatch.predicting.trained import find_cell

    export(find_cell(cell), target)
    print(f"{target} is written; read {target}/README.md before you publish it.")
