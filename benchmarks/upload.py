"""What the thread that uploads to MLflow takes from the training beside it.

One training, in blocks with and without upload in turns. With upload an evaluation is written every ten iterations, as
in the demo (the other profiles do so every thousand), and each block opens a run, as a cell does once. The thread
cannot hold up the training for longer than it computes itself, so its processor time in relation to the training's
bounds the slowdown, on a busy machine too; the clock is printed beside it. Importing mlflow is timed apart. The bound
is 2 %.

Example: python benchmarks/upload.py --method fixmatch
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
import typer
import yaml

from safeecgmatch.engine.loop import Training
from safeecgmatch.files import write_json, write_text
from safeecgmatch.launching.outputs import history_csv
from safeecgmatch.launching.scratch import Scratch
from safeecgmatch.tracking.record import run_record
from safeecgmatch.tracking.uploader import Following
from synthetic import make_training, write_rows, write_store

BOUND = 0.02
RECORDS = 600


@dataclass
class Spent:
    """Seconds: of the training's thread on the processor, of all other threads on it, and by the clock."""

    training: float
    others: float
    wall: float


def begin(scratch: Scratch, method: str) -> None:
    cell = {"dataset": "ptbxl", "method": method, "ood": 60, "seed": 1, "variant": "full", "lambda_sum": None}
    config = {"cell": cell, "protocol": "paper", "train": {"threads": 1}, "data": {"hash": "none"}}
    config |= {"config_hash": "none", "fingerprint": "none"}
    about = {"profile": "benchmark", "path": scratch.folder.name, "stage": "train@none", "code": {}, "device": "cpu"}
    record = run_record(config, uid=scratch.folder.name, origin=("", False), **about)  # type: ignore[arg-type]
    write_text(scratch.config, yaml.safe_dump(config))
    write_json(scratch.record, record)


def block(training: Training, scratch: Scratch, seconds: float, upload: bool) -> Spent:
    """Train for some seconds; afterwards wait for the upload, which is not counted."""
    with ExitStack() as stack:
        if upload:
            stack.enter_context(Following()).follow(scratch)
        wall, own, process = time.perf_counter(), time.thread_time(), time.process_time()
        began, before = training.n, len(training.history)
        while time.perf_counter() - wall < seconds:
            training.iterate()
            if training.n % 10 == 0:
                training.evaluate()
                write_text(scratch.history, history_csv(training.history[before:]))
        own, process = time.thread_time() - own, time.process_time() - process
        per = training.n - began
        return Spent(own / per, (process - own) / per, (time.perf_counter() - wall) / per)


def main(
    method: str = typer.Option("fixmatch", help="The method to train."),
    seconds: float = typer.Option(20.0, help="Of a block."),
    rounds: int = typer.Option(3, help="Blocks of each kind; medians count."),
    width: int = typer.Option(16, help="Of the network."),
) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        os.environ["DVC_ROOT"] = name
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        folder = Path(name)
        write_store(folder / "data", RECORDS, 100)
        write_rows(folder / "data", RECORDS)
        training = make_training(folder / "data", method, width, threads=1)
        began = time.process_time()
        with Following():
            pass
        print(f"importing mlflow, once     {time.process_time() - began:8.2f} s of processor")
        spent: dict[bool, list[Spent]] = {False: [], True: []}
        for number in range(rounds):
            for upload, found in spent.items():
                scratch = Scratch(folder / f"{number}{upload}")
                begin(scratch, method)
                found.append(block(training, scratch, seconds, upload))
    without, with_upload = spent[False], spent[True]
    base = median(part.training for part in without)
    taken = median(part.others for part in with_upload) - median(part.others for part in without)
    for label, found in (("without", without), ("with", with_upload)):
        own, wall = median(part.training for part in found), median(part.wall for part in found)
        print(f"iteration {label:>7} upload   {own * 1e3:8.2f} ms of processor, {wall * 1e3:8.2f} ms by the clock")
    print(f"the uploading thread       {taken * 1e3:8.2f} ms of processor = {taken / base:.2%} (at most 2 %)")
    sys.exit(taken / base > BOUND)


if __name__ == "__main__":
    typer.run(main)
