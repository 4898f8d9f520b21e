"""One process's share of a cell: from a checkpoint, if there is one, to the end or to a stop signal."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from safeecgmatch.cells import Cell
from safeecgmatch.config import Params
from safeecgmatch.engine.cell import Inputs, build, resolve
from safeecgmatch.engine.checkpoint import Checkpoint
from safeecgmatch.engine.fingerprint import fingerprint
from safeecgmatch.engine.loop import Row, Training
from safeecgmatch.files import project_root
from safeecgmatch.launching.outputs import write_outputs
from safeecgmatch.predictions import final_metrics
from safeecgmatch.progress import Progress


class Log(Protocol):
    """Where a run is tracked; what it does can neither change nor stop the training."""

    @property
    def uid(self) -> str: ...

    def evaluation(self, iteration: int, metrics: Mapping[str, Any]) -> None: ...

    def interrupt(self) -> None: ...


class Stopped(Exception):
    """A stop signal came and the checkpoint is written; `status` is the process's exit status."""

    def __init__(self, iteration: int, status: int) -> None:
        super().__init__(f"stopped after iteration {iteration}; run the same command again to go on")
        self.status = status


class Session:
    """Runs a training with checkpoints. `extra` travels in them: the run's uid and the seconds spent so far."""

    def __init__(self, training: Training, checkpoint: Checkpoint, every: int) -> None:
        self.training, self.checkpoint, self.every = training, checkpoint, every
        self.extra: dict[str, Any] = {"uid": None, "seconds": 0.0}
        self.started = time.monotonic()
        self.signals: list[int] = []

    def restore(self) -> str:
        """Continue from the checkpoint where there is a good one; returns a warning, or nothing."""
        state, warning = self.checkpoint.load()
        if state is not None:
            self.training.load(state["training"])
            self.extra |= state["extra"]
        return warning

    def listen(self) -> None:
        """From now on SIGTERM and SIGINT end the session after the current iteration, with a checkpoint."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: self.signals.append(received))

    def run(self, log: Log, show: Callable[[Training], None]) -> None:
        def after_iteration(training: Training) -> None:
            show(training)
            if self.signals or (training.n % self.every == 0 and not training.finished):
                self.save()
            if self.signals:
                raise Stopped(training.n, 128 + self.signals[0])

        def after_evaluation(row: Row) -> None:
            log.evaluation(row["iteration"], row)

        self.training.run(after_iteration, after_evaluation)

    def save(self) -> None:
        """Never over a good checkpoint with one whose losses are no longer finite."""
        self.training.check_divergence()
        extra = {**self.extra, "seconds": self.seconds()}
        self.checkpoint.save({"training": self.training.state(), "extra": extra})

    def seconds(self) -> float:
        """Wall time of this cell so far, over all its processes."""
        return self.extra["seconds"] + time.monotonic() - self.started


def run_cell(
    params: Params,
    cell: Cell,
    open_log: Callable[[dict[str, Any], str | None, str], Log],
    close_log: Callable[[Log, Path, dict[str, float], float, int], None],
) -> None:
    """Train `cell` to its end and write runs/<cell>.

    `open_log` gets the resolved config, the uid of a resumed run and the device; `close_log` the log, the folder, the
    final metrics, the seconds and the iterations.
    """
    inputs = Inputs.open(cell, Path("data"))
    config = resolve(params, cell, inputs)
    training, sets = build(config, inputs)
    scratch = project_root() / "scratch" / cell.path
    session = Session(training, Checkpoint(scratch, fingerprint(config)), params.train.checkpoint_every)
    warning = session.restore()
    if warning:
        print(f"warning: {warning}", file=sys.stderr)
    log = open_log(config, session.extra["uid"], str(training.device))
    session.extra["uid"] = log.uid
    session.listen()
    with Progress(params.train.iterations, cell.path, "iterations") as bar:
        bar.done = training.n
        try:
            session.run(log, show=lambda done: bar.advance(note=note(done)))
        except Stopped:
            log.interrupt()
            raise
    folder = Path("runs") / cell.path
    generated = params.data.source(cell.dataset).source == "phantom"
    predictions = write_outputs(folder, training, sets, config, inputs, generated)
    close_log(log, folder, final_metrics(predictions), session.seconds(), training.n)
    session.checkpoint.discard()


def note(training: Training) -> str:
    return f"validation accuracy {training.history[-1]['val_accuracy']:.3f}" if training.history else ""
