"""What every launcher takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Job:
    """A command to run in the project's folder; all that it prints goes to `log`."""

    name: str
    command: tuple[str, ...]
    log: Path


@dataclass(frozen=True)
class Outcome:
    job: Job
    status: int  # exit status, 0 = good
    seconds: float


class Report(Protocol):
    """Told by a launcher how far it is."""

    def started(self, job: Job) -> None: ...

    def finished(self, outcome: Outcome) -> None: ...

    def tick(self) -> None:
        """Called a few times per second while jobs run."""


Launcher = Callable[[Sequence[Job], Report], list[Outcome]]


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines of a log that hold text; a progress bar's overwritten states count as lines."""
    if not log.exists():
        return []
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 500 * count))
        text = stream.read().decode(errors="replace").replace("\r", "\n")
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]
