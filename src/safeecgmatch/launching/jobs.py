"""What every launcher takes and gives."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from safeecgmatch.cells import Cell
from safeecgmatch.launching.cluster import Cluster


@dataclass(frozen=True)
class Job:
    """One cell to be trained. Its folder is named by the fingerprint: the same folder is the same work."""

    cell: Cell
    folder: Path  # absolute: scratch/<cell>/<fingerprint>
    uid: str  # of its MLflow run; a job that runs again elsewhere continues the same run
    log: Path  # all that the cell prints

    @property
    def name(self) -> str:
        return self.cell.path


@dataclass(frozen=True)
class Failure:
    job: Job
    reason: str


@dataclass(frozen=True)
class Means:
    """With what a launcher trains: always the snapshot, never the tree that somebody may be editing."""

    snapshot: Path
    data: Path
    at_once: int
    gpus: tuple[str, ...]  # one cell each; empty: no cell is bound to a GPU
    cluster: Cluster
    upload: bool  # cells upload to MLflow themselves; otherwise the launching process follows their files


class Report(Protocol):
    """Told by a launcher how far it is; every job is queued at first."""

    def started(self, job: Job) -> None: ...

    def queued(self, job: Job) -> None:
        """It was running and waits again."""

    def finished(self, job: Job, failure: Failure | None) -> None: ...

    def tick(self) -> None:
        """Called now and then while jobs run."""


Launcher = Callable[[Sequence[Job], Report, Means], list[Failure]]


class Detached(Exception):
    """An interrupt ended the waiting while jobs go on; the text says how to look again and how to cancel."""


def command(
    job: Job, means: Means, folder: Path | None = None, data: Path | None = None, snapshot: Path | None = None
) -> tuple[list[str], dict[str, str], Path]:
    """Arguments, additions to the environment and working folder of the process that trains `job`.

    The paths are those of home unless a worker without a shared file system names its own. Exit status 0 means that the
    finished result is in the folder.
    """
    where = snapshot or means.snapshot
    arguments = [sys.executable, "-m", "safeecgmatch.launching.cell", job.cell.path]
    arguments += ["--folder", str(folder or job.folder), "--data", str(data or means.data), "--uid", job.uid]
    return [*arguments, *(["--upload"] if means.upload else [])], environment(where), where


def environment(snapshot: Path) -> dict[str, str]:
    """What makes Python import the snapshot's code, whatever is installed."""
    search = [str(snapshot / "src"), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, search)), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines of a log that hold text; a progress bar's overwritten states count as lines."""
    if not log.exists():
        return []
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 500 * count))
        text = stream.read().decode(errors="replace").replace("\r", "\n")
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]
