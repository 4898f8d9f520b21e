"""Stage `train`: one cell, one MLflow run. Takes a finished result over from scratch/, else trains or goes on.

Example: python stages/train.py ptbxl/fixmatch/30/1
"""

from __future__ import annotations

import sys
from pathlib import Path

# A queued experiment must run the code of its own workspace, not that of the editable install.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import typer

from safeecgmatch.cells import find_cell
from safeecgmatch.config import load_params
from safeecgmatch.engine.fingerprint import resolve
from safeecgmatch.errors import UserError, one_sentence
from safeecgmatch.launching.adoption import adopt, take_over_only
from safeecgmatch.launching.scratch import Scratch
from safeecgmatch.startup import quick_imports


def train(path: str) -> None:
    params = load_params()
    cell = find_cell(params, path)
    config = resolve(params, cell)
    if adopt(path, config, upload=not take_over_only()):
        print(f"{path}: trained before with the same params, code and data; taken over from scratch.")
        return
    if take_over_only():
        raise UserError(f"{path}: there is no finished result of these params, code and data; run the command again.")
    with quick_imports():
        from safeecgmatch.launching.train_cell import Stopped, train_cell
    from safeecgmatch.tracking.uploader import Following

    scratch = Scratch.of(path, config["fingerprint"])
    with Following() as uploader:
        uploader.follow(scratch)
        try:
            train_cell(params, cell, config, scratch, Path("data"), scratch.uid())
        except Stopped as stop:
            print(f"{path}: {stop}", file=sys.stderr)
            sys.exit(stop.status)
    if not adopt(path, config):
        raise UserError(f"{path} was trained, but its result is not the one that is wanted; run the command again.")


def main(path: str = typer.Argument(help="The cell's folder below runs/, such as ptbxl/fixmatch/30/1.")) -> None:
    """Write runs/PATH and tracking/PATH/run.json, and log the cell to MLflow."""
    with one_sentence():
        train(path)


if __name__ == "__main__":
    typer.run(main)
