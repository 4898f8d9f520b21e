"""How far a launcher is, the same for all: queued, running with iterations and time left, done, failed."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from safeecgmatch.launching.estimate import Speeds, position
from safeecgmatch.launching.jobs import Failure, Job
from safeecgmatch.progress import duration

SECONDS_BETWEEN_LINES = 15.0


class Tally:
    """Counts, and estimates the time left from iterations: of cells that run and of cells done before."""

    def __init__(self, jobs: Sequence[Job], iterations: int, at_once: int, speeds: Speeds) -> None:
        self.waiting, self.iterations, self.at_once, self.speeds = list(jobs), iterations, at_once, speeds
        self.total, self.done = len(jobs), 0
        self.running: dict[Job, float] = {}
        self.failures: list[Failure] = []

    def started(self, job: Job) -> None:
        self.waiting.remove(job)
        self.running[job] = time.monotonic()

    def queued(self, job: Job) -> None:
        del self.running[job]
        self.waiting.append(job)

    def finished(self, job: Job, failure: Failure | None) -> None:
        began = self.running.pop(job, None)
        if job in self.waiting:
            self.waiting.remove(job)
        if failure is not None:
            self.failures.append(failure)
            return
        self.done += 1
        if began is not None:
            self.speeds.learn(job.cell.method, (time.monotonic() - began) / self.iterations)

    def tick(self) -> None:
        """Nothing to show."""

    def seconds_left(self) -> float | None:
        """None as long as no cell, here or before, tells anything."""
        work: list[tuple[Job, int, float | None]] = [(job, self.iterations, None) for job in self.waiting]
        for job in list(self.running):
            made, speed = position(job)
            work.append((job, self.iterations - made, speed))
        known = [speed for _, _, speed in work if speed]
        rest = sum(known) / len(known) if known else None
        speeds = [speed or self.speeds.of(job.cell.method) or rest for job, _, speed in work]
        if None in speeds:
            return None
        seconds = [left * (speed or 0.0) for (_, left, _), speed in zip(work, speeds, strict=True)]
        at_once = self.at_once or max(len(self.running), 1)  # a cluster starts as many as it likes
        return max(sum(seconds) / at_once, max(seconds, default=0.0))

    def summary(self) -> str:
        left = self.seconds_left()
        parts = [f"{len(self.waiting)} queued", f"{len(self.running)} running", f"{self.done} of {self.total} done"]
        parts += [f"{len(self.failures)} failed"] if self.failures else []
        return ", ".join(parts + ([] if left is None else [f"{duration(left)} left"]))

    def line(self, job: Job) -> str:
        made, speed = position(job)
        parts = [job.name, f"{made}/{self.iterations} iterations"]
        return ", ".join(parts + ([f"{duration((self.iterations - made) * speed)} left"] if speed else []))


class Lines(Tally):
    """For logs: a failure at once, the rest as sparse lines."""

    def __init__(
        self, jobs: Sequence[Job], iterations: int, at_once: int, speeds: Speeds, stream: TextIO | None = None
    ) -> None:
        super().__init__(jobs, iterations, at_once, speeds)
        self.stream = stream or sys.stderr
        self.began = self.last = time.monotonic()

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self.say(f"training cells: {self.summary()} after {duration(time.monotonic() - self.began)}")

    def finished(self, job: Job, failure: Failure | None) -> None:
        super().finished(job, failure)
        if failure is not None:
            self.say(f"{job.name} failed ({failure.reason}), log in {job.log}")

    def tick(self) -> None:
        if time.monotonic() - self.last >= SECONDS_BETWEEN_LINES:
            self.last = time.monotonic()
            self.say(
                f"training cells: {self.summary()}; running {'; '.join(map(self.line, list(self.running))) or 'none'}"
            )

    def say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)


class Board(Lines):
    """For terminals: a bar, the summary, and a line for each cell that runs."""

    def __enter__(self) -> Board:
        self.live = Live(console=Console(file=self.stream), get_renderable=self.render, refresh_per_second=2)
        self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()
        super().__exit__(*error)

    def tick(self) -> None:
        """Drawn by a clock of its own."""

    def say(self, text: str) -> None:
        self.live.console.print(text, highlight=False)

    def render(self) -> RenderableType:
        head = Table.grid(padding=(0, 1))
        head.add_row(ProgressBar(self.total, self.done, width=30), self.summary())
        return Group(
            head, *(Text(f"  {self.line(job)}", overflow="ellipsis", no_wrap=True) for job in list(self.running))
        )


def board(jobs: Sequence[Job], iterations: int, at_once: int, speeds: Speeds) -> Lines:
    kind = Board if sys.stderr.isatty() else Lines
    return kind(jobs, iterations, at_once, speeds)
