"""How far a launcher is: rich's bars on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from safeecgmatch.files import read_json
from safeecgmatch.launching.jobs import Failure, Job
from safeecgmatch.launching.scratch import Scratch
from safeecgmatch.progress import duration

SECONDS_BETWEEN_LINES = 15.0  # in a log
SECONDS_BETWEEN_DRAWINGS = 1.0  # on a terminal


class Board:
    """Told by a launcher how far it is: every job is queued at first; `tick` comes now and then while jobs run.

    The time left comes from the iterations of the cells that run.
    """

    def __init__(self, jobs: Sequence[Job], iterations: int, stream: TextIO | None = None) -> None:
        self.jobs, self.iterations, self.stream = jobs, iterations, stream or sys.stderr
        self.running: dict[Job, TaskID] = {}
        self.done = self.failed = 0
        self.began = self.shown = time.monotonic()
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=Console(file=self.stream),
            disable=not self.stream.isatty(),
        )
        self.total = self.bars.add_task("training cells", total=len(jobs) * iterations, note="")

    def __enter__(self) -> Board:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.draw()
        self.bars.stop()
        self.say(f"training cells: {self.summary()} after {duration(time.monotonic() - self.began)}")

    def started(self, job: Job) -> None:
        self.running[job] = self.bars.add_task(job.name, total=self.iterations, note="")

    def queued(self, job: Job) -> None:
        """It was running and waits again."""
        self.bars.remove_task(self.running.pop(job))

    def finished(self, job: Job, failure: Failure | None) -> None:
        if job in self.running:
            self.queued(job)
        if failure is None:
            self.done += 1
        else:
            self.failed += 1
            self.say(f"{job.name} failed ({failure.reason}), log in {job.log}")

    def tick(self) -> None:
        pause = SECONDS_BETWEEN_LINES if self.bars.disable else SECONDS_BETWEEN_DRAWINGS
        if time.monotonic() - self.shown < pause:
            return
        self.shown = time.monotonic()
        self.draw()
        if self.bars.disable:
            cells = "; ".join(f"{job.name}, {self.note(job)}" for job in self.running)
            self.say(f"training cells: {self.summary()}; running {cells or 'none'}")

    def draw(self) -> None:
        completed = self.iterations * (self.done + self.failed)
        for job, task in self.running.items():
            made, _ = position(job)
            completed += made
            self.bars.update(task, completed=made, note=self.note(job))
        self.bars.update(self.total, completed=completed, note=self.summary())

    def note(self, job: Job) -> str:
        made, speed = position(job)
        left = f", {duration((self.iterations - made) / speed)} left" if speed else ""
        return f"{made}/{self.iterations} iterations{left}"

    def summary(self) -> str:
        waiting = len(self.jobs) - len(self.running) - self.done - self.failed
        parts = [f"{waiting} queued", f"{len(self.running)} running", f"{self.done} of {len(self.jobs)} done"]
        parts += [f"{self.failed} failed"] if self.failed else []
        left = self.seconds_left(waiting)
        return ", ".join(parts + ([] if left is None else [f"{duration(left)} left"]))

    def seconds_left(self, waiting: int) -> float | None:
        """None as long as no cell that runs has made an iteration."""
        positions = [position(job) for job in self.running]
        speed = sum(speed for _, speed in positions)
        left = self.iterations * (waiting + len(positions)) - sum(made for made, _ in positions)
        return left / speed if speed else None

    def say(self, text: str) -> None:
        self.bars.console.print(text, markup=False, highlight=False, soft_wrap=True)


def position(job: Job) -> tuple[int, float]:
    """The iterations that a running job has made, and how many a second since this process of it began."""
    file = Scratch(job.folder).progress
    if not file.exists():
        return 0, 0.0
    progress = read_json(file)
    made = progress["iteration"] - progress["begun_at"]
    return progress["iteration"], made / progress["seconds"] if made else 0.0
