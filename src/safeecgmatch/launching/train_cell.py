"""One process's share of a cell: from a checkpoint, if there is one, to a finished result in its scratch folder.

As a program it is what launchers start, in a folder with params.yaml:
`python -m safeecgmatch.launching.train_cell PATH --folder F --data D --uid U`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import typer
import yaml

from safeecgmatch.cells import Cell, find_cell
from safeecgmatch.config import Params, load_params
from safeecgmatch.engine.assembly import Inputs, build
from safeecgmatch.engine.checkpoint import Checkpoint
from safeecgmatch.engine.fingerprint import code_of, resolve
from safeecgmatch.engine.loop import Diverged, Row, Training
from safeecgmatch.engine.signals import SignalSet
from safeecgmatch.errors import UserError
from safeecgmatch.files import digest_of, write_json, write_text
from safeecgmatch.launching.outputs import history_csv, warnings_in, write_outputs
from safeecgmatch.launching.scratch import Scratch
from safeecgmatch.launching.snapshot import origin
from safeecgmatch.predictions import final_metrics
from safeecgmatch.progress import Progress
from safeecgmatch.tracking.record import RECORD_FILE, Cost, finished_record, run_record
from safeecgmatch.tracking.uploader import Following

torch.compiler.disable(len)  # imports torch's compiler, which every optimizer does in its first step anyway

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
SECONDS_BETWEEN_PROGRESS = 2.0
SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_AS_AN_ORPHAN = 20.0  # to write a checkpoint


class Stopped(Exception):
    """A stop signal came and the checkpoint is written; `status` is the process's exit status."""

    def __init__(self, iteration: int, status: int) -> None:
        super().__init__(f"stopped after iteration {iteration}; run the same command again to go on")
        self.status = status


class Session:
    """Runs a training with checkpoints, in which the cost so far travels along."""

    def __init__(self, training: Training, checkpoint: Checkpoint, every: int, before: Cost) -> None:
        self.training, self.checkpoint, self.every, self.before = training, checkpoint, every, before
        self.started = time.monotonic()
        self.signals: list[int] = []

    def listen(self) -> None:
        """From now on a stop signal ends the session after the current iteration, with a checkpoint."""
        for number in STOPPING:
            signal.signal(number, lambda received, _: self.signals.append(received))

    def run(self, show: Callable[[Training], None], evaluated: Callable[[Row], None]) -> None:
        def after_iteration(training: Training) -> None:
            show(training)
            if self.signals or (training.n % self.every == 0 and not training.finished):
                self.save()
            if self.signals:
                raise Stopped(training.n, 128 + self.signals[0])

        self.training.run(after_iteration, evaluated)

    def save(self) -> None:
        """Never over a good checkpoint with one whose losses are no longer finite; the next evaluation says so."""
        if self.training.monitor.diverged():
            return
        self.checkpoint.save({"training": self.training.state(), "cost": asdict(self.cost())})

    def cost(self) -> Cost:
        return Cost(self.before.wall + time.monotonic() - self.started, self.before.cpu + time.process_time())


def restored(
    config: dict[str, Any], inputs: Inputs, checkpoint: Checkpoint
) -> tuple[Training, dict[str, SignalSet], Cost]:
    """The training as its checkpoint left it, or from the start where there is no good one; what it cost so far."""
    training, sets = build(config, inputs)
    state, warning = checkpoint.load()
    if state is not None:
        try:
            training.load(state["training"])
            return training, sets, Cost(**state["cost"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:  # half of it may be loaded: build anew
            warning = checkpoint.set_aside(f"does not fit this cell ({' '.join(repr(error).split())[:120]})")
            training, sets = build(config, inputs)
    if warning:
        print(f"warning: {warning}", file=sys.stderr)
    return training, sets, Cost()


def train_cell(params: Params, cell: Cell, config: dict[str, Any], scratch: Scratch, data: Path, uid: str) -> None:
    """Leave the finished result of `cell`, whose resolved config is `config`, in its scratch folder."""
    with scratch.lock():
        if scratch.verify():
            return  # another process was faster
        inputs = Inputs.open(cell, data)
        checkpoint = Checkpoint(scratch.folder, config["fingerprint"])
        training, sets, before = restored(config, inputs, checkpoint)
        config = {**config, "in_force": training.method.in_force()}
        session = Session(training, checkpoint, params.checkpoint_every, before)
        record = run_record(
            config,
            profile=params.profile,
            path=cell.path,
            stage=cell.stage,
            code=code_of(config["module"]),
            device=str(training.device),
            uid=uid,
            origin=origin(Path.cwd()),
        )
        write_text(scratch.config, yaml.safe_dump(config, sort_keys=True))
        write_text(scratch.history, history_csv(training.history))
        write_json(scratch.record, record)
        session.listen()
        diverged = run(session, scratch, cell.path)
        with scratch.sealing(config["fingerprint"]) as folder:
            outputs = folder / "run"
            generated = params.data.source(cell.dataset).source == "phantom"
            predictions = write_outputs(outputs, training, sets, config, inputs, generated, diverged)
            for text in warnings_in(outputs):
                print(f"warning: {cell.path}: {text}", file=sys.stderr)
            metrics = final_metrics(predictions) if predictions else {}
            weights = outputs / "model.safetensors"
            md5 = digest_of(weights, "md5") if weights.exists() else None
            write_json(folder / RECORD_FILE, finished_record(record, metrics, session.cost(), training.n, md5))
        session.checkpoint.discard()


def run(session: Session, scratch: Scratch, label: str) -> str:
    """Train to the end; returns why it had to end early, or nothing."""
    training = session.training
    begun_at, last = training.n, 0.0

    def show(done: Training) -> None:
        nonlocal last
        bar.advance(note=f"validation accuracy {done.history[-1]['val_accuracy']:.3f}" if done.history else "")
        if time.monotonic() - last >= SECONDS_BETWEEN_PROGRESS:
            last = time.monotonic()
            progress = {"iteration": done.n, "iterations": done.setting.iterations, "begun_at": begun_at}
            write_json(scratch.progress, progress | {"seconds": last - session.started})

    with Progress(training.setting.iterations, label, "iterations") as bar:
        bar.done = training.n
        try:
            session.run(show, lambda _: write_text(scratch.history, history_csv(training.history)))
        except Diverged as error:
            return str(error)
    return ""


def watch_parent() -> None:
    """When the process that started this one has gone, end as after a SIGTERM, and hard if that does not help.

    A launcher names itself in SAFEECGMATCH_PARENT: it may go while this process still imports. A fork server outlives
    its launcher as long as there are forked cells, so these look at both.
    """
    parent = int(os.environ.get("SAFEECGMATCH_PARENT", os.getppid()))
    launcher = multiprocessing.parent_process()

    def watch() -> None:
        while os.getppid() == parent and (launcher is None or launcher.is_alive()):
            time.sleep(SECONDS_BETWEEN_LOOKS)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(SECONDS_AS_AN_ORPHAN)
        os.kill(os.getpid(), signal.SIGKILL)

    Thread(target=watch, daemon=True).start()


def train_job(path: str, folder: Path, data: Path, uid: str, upload: bool = False) -> int:
    """Train the cell `path` of the params.yaml here into `folder`; the exit status. What went wrong is printed."""
    watch_parent()
    try:
        params = load_params()
        cell = find_cell(params, path)
        config = resolve(params, cell, data)
        if config["fingerprint"] != folder.name:
            raise UserError(f"{path}: the data or the snapshot changed after submission; submit it again.")
        with ExitStack() as stack:
            if upload:
                stack.enter_context(Following()).follow(Scratch(folder))
            train_cell(params, cell, config, Scratch(folder), data, uid)
    except Stopped as stop:
        print(f"{path}: {stop}", file=sys.stderr)
        return stop.status
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def main(
    path: str = typer.Argument(help="The cell's folder below runs/."),
    folder: Path = typer.Option(..., help="Its scratch folder, named by its fingerprint."),
    data: Path = typer.Option(..., help="The folder with filtered/ and splits/."),
    uid: str = typer.Option(..., help="Of its MLflow run."),
    upload: bool = typer.Option(False, "--upload", help="Upload it to MLflow while it trains."),
) -> None:
    """Train one cell into its scratch folder."""
    sys.exit(train_job(path, folder, data, uid, upload))


if __name__ == "__main__":
    typer.run(main)
