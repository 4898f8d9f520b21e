"""Stage `train`: one cell, one process, one MLflow run. Started again after a kill, it goes on where it was.

Example: python stages/train.py ptbxl/fixmatch/30/1
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import typer

# A queued experiment must run the code of its own workspace, not that of the editable install.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from safeecgmatch import tracking
from safeecgmatch.config import Cell, cells, load_params
from safeecgmatch.errors import UserError
from safeecgmatch.files import project_root, write_json
from safeecgmatch.progress import Progress


def find(path: str) -> Cell:
    asked = [cell for cell in cells(load_params()) if cell.path == path]
    if not asked:
        raise UserError(f"params.yaml asks for no cell '{path}'; `safeecgmatch cells` lists those that it asks for.")
    return asked[0]


def train(path: str) -> None:
    cell = find(path)
    tracking.warm_up()  # imports mlflow in another process while this one imports torch
    from safeecgmatch.calibration.metrics import final_metrics
    from safeecgmatch.training import cell as engine
    from safeecgmatch.training.checkpoint import Checkpoint

    params = load_params()
    inputs = engine.Inputs.open(cell, Path("data"))
    config = engine.resolve(params, cell, inputs)
    training, sets = engine.build(config, inputs)
    checkpoint = Checkpoint(project_root() / "scratch" / cell.path, f"{config['config_hash']}-{engine.code_hash()}")
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: signals.append(received))
    with Progress(params.train.iterations, cell.path, "iterations") as bar:
        session = engine.Session(
            training,
            checkpoint,
            every=params.train.checkpoint_every,
            extra={"seconds": 0.0, "uid": None},
            stop_requested=lambda: bool(signals),
            progress=lambda done: bar.advance(done.n - bar.done),
            on_evaluation=lambda row: logger.evaluation(row["iteration"], row),
        )
        warning = session.restore()
        if warning:
            print(f"warning: {warning}", file=sys.stderr)
        tracked = {**config, "profile": params.profile}
        record = tracking.run_record(
            tracked,
            path=cell.path,
            data_hash=inputs.data_hash,
            device=str(training.device),
            threads=params.train.threads,
            uid=session.extra["uid"],
        )
        logger = tracking.start(record, tracked)
        session.extra["uid"] = logger.uid
        try:
            session.run()
        except engine.Stopped as stop:
            logger.interrupt()
            print(f"{cell.path}: {stop}", file=sys.stderr)
            sys.exit(128 + signals[0])
    folder = Path("runs") / cell.path
    predictions = engine.write_outputs(folder, training, sets, config, inputs)
    seconds = session.seconds()
    result = logger.finish(
        folder, final_metrics(predictions), wall_seconds=seconds, iterations_per_second=training.n / seconds
    )
    write_json(Path("tracking") / cell.path / "run.json", result.record)
    checkpoint.discard()


def main(path: str = typer.Argument(help="The cell's folder below runs/, such as ptbxl/fixmatch/30/1.")) -> None:
    """Train one cell and write runs/PATH and tracking/PATH/run.json."""
    try:
        train(path)
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    typer.run(main)
