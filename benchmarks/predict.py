"""What `safeecgmatch predict` costs beside its network: files to CSV, against the bare network on the same batches.

Run: python benchmarks/predict.py runs/ptbxl/safeecgmatch/60/1 data/raw/ptbxl/records100/00000. The limit is 1.3.
Both are measured in CPU time, in turns, the best of several: other work on the machine only adds to it.
"""

from __future__ import annotations

import io
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path

import torch
import typer

from safeecgmatch.engine.signals import MILLIVOLTS
from safeecgmatch.predicting import running
from safeecgmatch.predicting.trained import Trained, find_cell

LIMIT = 1.3


def cpu_seconds(action: Callable[[], object]) -> float:
    started = time.process_time()
    action()
    return time.process_time() - started


def main(
    cell: str = typer.Argument(help="A finished cell."),
    folder: Path = typer.Argument(help="A folder of WFDB records at the cell's rate."),
    rounds: int = typer.Option(5, help="Turns of both; the best of each counts."),
) -> None:
    trained = Trained.open(find_cell(cell))
    jobs = [running.Job("", header) for header in sorted(folder.rglob("*.hea"))]
    blocks = [block.rows for block in running.read_blocks(jobs, trained)]
    batches = [torch.from_numpy(rows).float().mul_(MILLIVOLTS).to(trained.device) for rows in blocks]

    @torch.no_grad()
    def network() -> None:
        for batch in batches:
            trained.method.outputs(batch)

    def whole(output: Path) -> None:
        with redirect_stderr(io.StringIO()):
            running.predict(trained, [str(folder)], output, None, False, io.StringIO())

    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "answers.csv"
        for action in (network, lambda: whole(output)):
            action()  # the first time also imports and allocates
        pairs = [(cpu_seconds(lambda: whole(output)), cpu_seconds(network)) for _ in range(rounds)]
    records = sum(map(len, blocks))
    predicted, bare = (min(times) / records * 1e3 for times in zip(*pairs, strict=True))
    ratio = predicted / bare
    print(f"{records} records: predict {predicted:.2f} ms, bare network {bare:.2f} ms of CPU each, ratio {ratio:.2f}")
    if ratio > LIMIT:
        sys.exit(f"slower than the limit of {LIMIT}")


if __name__ == "__main__":
    typer.run(main)
