"""How far a launcher is: on a terminal a bar and one line per running job, elsewhere a sparse line."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from safeecgmatch.launching.jobs import Job, Outcome, last_lines
from safeecgmatch.progress import Progress, duration


class Lines:
    """For logs: a failure at once, the rest as sparse lines with the time left."""

    def __init__(self, total: int, label: str, stream: TextIO) -> None:
        self.stream = stream
        self.running: dict[Job, float] = {}
        self.progress = Progress(total, label, "cells", stream)

    def __enter__(self) -> Lines:
        self.progress.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.__exit__(*error)  # type: ignore[arg-type]

    def started(self, job: Job) -> None:
        self.running[job] = time.monotonic()

    def finished(self, outcome: Outcome) -> None:
        del self.running[outcome.job]
        if outcome.status != 0:
            print(f"{outcome.job.name} failed, log in {outcome.job.log}", file=self.stream, flush=True)
        self.progress.advance(1, note=f"running {', '.join(job.name for job in self.running) or 'none'}")

    def tick(self) -> None:
        self.progress.advance(0)


class Board:
    """For terminals. The time left supposes that the cells to come are like those that are done."""

    def __init__(self, total: int, label: str, stream: TextIO) -> None:
        self.total, self.done, self.failed = total, 0, 0
        self.began = time.monotonic()
        self.running: dict[Job, float] = {}
        console = Console(file=stream)
        self.bar = Bar(
            TextColumn(label),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
        )
        self.task = self.bar.add_task(label, total=total, left="")
        self.live = Live(console=console, get_renderable=self.render, refresh_per_second=4)

    def __enter__(self) -> Board:
        self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()

    def started(self, job: Job) -> None:
        self.running[job] = time.monotonic()

    def finished(self, outcome: Outcome) -> None:
        del self.running[outcome.job]
        self.done += 1
        self.failed += outcome.status != 0

    def tick(self) -> None:
        left = ""
        if self.done:
            left = f"{duration((time.monotonic() - self.began) / self.done * (self.total - self.done))} left"
        if self.failed:
            left += f", {self.failed} failed"
        self.bar.update(self.task, completed=self.done, left=left)

    def render(self) -> RenderableType:
        lines = [
            Text(
                f"  {job.name}  {duration(time.monotonic() - began)}  {' '.join(last_lines(job.log, 1))}",
                overflow="ellipsis",
                no_wrap=True,
            )
            for job, began in self.running.items()
        ]
        return Group(self.bar, *lines)


def board(total: int, label: str, stream: TextIO | None = None) -> Lines | Board:
    stream = stream or sys.stderr
    return (Board if stream.isatty() else Lines)(total, label, stream)
