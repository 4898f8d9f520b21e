"""Stage `train`: one cell, one process, one MLflow run. Started again after a kill, it goes on where it was.

Example: python stages/train.py ptbxl/fixmatch/30/1
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

# A queued experiment must run the code of its own workspace, not that of the editable install.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import typer

from safeecgmatch import tracking
from safeecgmatch.cells import cells
from safeecgmatch.config import load_params
from safeecgmatch.errors import UserError
from safeecgmatch.files import write_json
from safeecgmatch.launching.places import place


def train(path: str) -> None:
    params = load_params()
    asked = {cell.path: cell for cell in cells(params)}
    if path not in asked:
        raise UserError(f"params.yaml asks for no cell '{path}'; `safeecgmatch cells` lists those that it asks for.")
    tracking.warm_up()  # imports mlflow in another process while this one imports torch
    from safeecgmatch.launching.cell import Stopped, run_cell

    def open_log(config: dict[str, Any], uid: str | None, device: str) -> tracking.Logger:
        tracked = {**config, "profile": params.profile}
        data_hash, threads = config["data"]["hash"], params.train.threads
        record = tracking.run_record(tracked, path=path, data_hash=data_hash, device=device, threads=threads, uid=uid)
        return tracking.start(record, tracked)

    def close_log(log: Any, folder: Path, metrics: dict[str, float], seconds: float, iterations: int) -> None:
        speed = iterations / seconds
        result = log.finish(folder, metrics, wall_seconds=seconds, iterations_per_second=speed)
        write_json(Path("tracking") / path / "run.json", result.record)

    try:
        with place():
            run_cell(params, asked[path], open_log, close_log)
    except Stopped as stop:
        print(f"{path}: {stop}", file=sys.stderr)
        sys.exit(stop.status)


def main(path: str = typer.Argument(help="The cell's folder below runs/, such as ptbxl/fixmatch/30/1.")) -> None:
    """Train one cell: write runs/PATH and tracking/PATH/run.json, and log it to MLflow."""
    try:
        train(path)
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    typer.run(main)
