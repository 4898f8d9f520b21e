"""The throughput of `safeecgmatch predict`, from files to lines, against the bare network on the same batches.

Run: python benchmarks/predict.py runs/ptbxl/safeecgmatch/60/1 data/raw/ptbxl.phantom/records100/00000
The limit is 1.3. Both take turns and the best of each counts, because other work on the machine only adds time. Reading
runs beside the network, so the limit holds for wall time on two cores; the CPU time of both together is what one core
needs.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path

import torch
import typer

from safeecgmatch.predicting import running
from safeecgmatch.predicting.running import Question
from safeecgmatch.predicting.trained import Trained, find_cell

LIMIT = 1.3


def seconds(action: Callable[[], None]) -> tuple[float, float]:
    """Of wall and of CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - cpu


def main(
    cell: str = typer.Argument(help="A finished cell."),
    folder: Path = typer.Argument(help="A folder of WFDB records at the cell's rate."),
    rounds: int = typer.Option(9, help="Turns of both; the best of each counts."),
) -> None:
    trained = Trained.open(find_cell(cell))
    questions = [Question("", header) for header in sorted(folder.rglob("*.hea"))]
    portions = [portion.records for portion in running.read_portions(questions, trained)]
    batches = [batch for records in portions for batch in trained.inputs(records)]
    count = sum(map(len, portions))

    @torch.no_grad()
    def network() -> None:
        for batch in batches:
            trained.method.outputs(batch)

    def predict() -> None:
        with redirect_stderr(io.StringIO()):
            running.predict(trained, [str(folder)], None, None, False, io.StringIO())

    for action in (network, predict):
        action()  # the first time also imports and allocates
    turns = [(seconds(predict), seconds(network)) for _ in range(rounds)]
    ratios = {}
    for place, clock in enumerate(("wall", "CPU")):
        ours, bare = (min(turn[who][place] for turn in turns) / count * 1e3 for who in range(2))
        ratios[clock] = ours / bare
        print(f"{clock}: predict {ours:.2f} ms, bare network {bare:.2f} ms a record, ratio {ours / bare:.2f}")
    if ratios["wall"] > LIMIT:
        sys.exit(f"slower than the limit of {LIMIT}")


if __name__ == "__main__":
    typer.run(main)
