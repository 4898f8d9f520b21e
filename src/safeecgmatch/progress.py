"""Progress with time left: a bar on a terminal, a sparse line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichProgress
from rich.text import Text

SECONDS_BETWEEN_LINES = 15.0
LONGEST_ESTIMATE = 100 * 3600.0  # seconds; longer ones come from a start too slow to say anything


def duration(seconds: float) -> str:
    """`75` -> `1:15`, `4000` -> `1:06:40`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


class TimeLeft(TimeRemainingColumn):
    """Rich's estimate, unless it is absurd."""

    def render(self, task: Task) -> Text:
        absurd = (task.time_remaining or 0.0) > LONGEST_ESTIMATE
        return Text("-:--:--", style="progress.remaining") if absurd else super().render(task)


class Progress:
    """`with Progress(total, "filter ptbxl", "records") as bar: bar.advance()`.

    With `unit="bytes"` sizes and rates are printed as such. `note` adds a short changing text, such as an accuracy.
    """

    def __init__(self, total: int, label: str, unit: str, stream: TextIO | None = None) -> None:
        self.total, self.label, self.unit = total, label, unit
        self.stream = stream or sys.stderr
        self.done = 0
        self.note = ""
        self._bar: RichProgress | None = None

    def __enter__(self) -> Progress:
        self.started = self._last_line = time.monotonic()
        if self.stream.isatty():
            amounts: list[ProgressColumn] = (
                [DownloadColumn(), TransferSpeedColumn()] if self.unit == "bytes" else [MofNCompleteColumn()]
            )
            self._bar = RichProgress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                *amounts,
                TimeLeft(),
                TextColumn("{task.fields[note]}", markup=False),
                console=Console(file=self.stream),
            )
            self._task = self._bar.add_task(self.label, total=self.total, note="")
            self._bar.start()
        return self

    def advance(self, amount: int = 1, note: str | None = None) -> None:
        self.done += amount
        self.note = self.note if note is None else note
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, total=self.total, note=self.note)
        elif time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            left = self._seconds_left()
            self._line(f"{duration(left)} left" if left <= LONGEST_ESTIMATE else "")

    def _seconds_left(self) -> float:
        elapsed = time.monotonic() - self.started
        return elapsed / self.done * max(self.total - self.done, 0) if self.done > 0 else float("inf")

    def _line(self, ending: str) -> None:
        share = 100 * self.done // max(self.total, 1)
        parts = [f"{self.label}: {self.done}/{self.total} {self.unit} ({share} %)", self.note, ending]
        print(", ".join(part for part in parts if part), file=self.stream, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif kind is None:
            self._line(f"done in {duration(time.monotonic() - self.started)}")
