"""What every launcher takes and gives, and the process that trains a cell on another machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from signal import Signals

from safeecgmatch.cells import Cell
from safeecgmatch.errors import UserError
from safeecgmatch.launching.cluster import Cluster
from safeecgmatch.launching.scratch import Scratch

SECONDS_FOR_A_SHARED_FOLDER = 15.0  # until it shows what another machine has written


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
    # To which cells upload themselves (passwords are set where they run); without it the launching process uploads.
    server: str = ""


class Detached(Exception):
    """An interrupt ended the waiting while jobs go on; the text says how to look again and how to cancel."""


def start(job: Job, means: Means, own_session: bool = False) -> subprocess.Popen[bytes]:
    """The process that trains `job`, on the machine that calls this; status 0 means that the finished result is there.

    What it prints is added to the log of earlier starts, so a submission begins with an empty log.
    """
    own = {"SAFEECGMATCH_PARENT": str(os.getpid())}
    own |= {"MLFLOW_TRACKING_URI": means.server} if means.server else {}
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        return subprocess.Popen(
            arguments(job, means),
            env=os.environ | environment(means.snapshot) | own,
            cwd=means.snapshot,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=own_session,
        )


def arguments(job: Job, means: Means) -> list[str]:
    asked = ["--folder", str(job.folder), "--data", str(means.data), "--uid", job.uid]
    asked += ["--upload"] if means.server else []
    return [sys.executable, "-m", "safeecgmatch.launching.train_cell", job.name, *asked]


def environment(snapshot: Path) -> dict[str, str]:
    """What makes Python import the snapshot's code, whatever is installed."""
    search = [str(snapshot / "src"), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, search)), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


def need(package: str, extra: str) -> None:
    """One sentence where a launcher's package is not installed."""
    if find_spec(package) is None:
        how = f"pip install -c constraints.txt -e '.[{extra}]'"
        raise UserError(f"--on {extra} needs the package {package}; install it with: {how}")


def failure_of(job: Job, status: int) -> Failure | None:
    """What the exit status of a job's process means; minus n is the signal n."""
    if status < 0:
        return Failure(job, f"killed by signal {-status} ({Signals(-status).name})")
    if status > 0:
        return Failure(job, f"exit status {status}")
    deadline = time.monotonic() + SECONDS_FOR_A_SHARED_FOLDER
    while not Scratch(job.folder).finished.is_dir():
        if time.monotonic() > deadline:
            return Failure(job, f"its process ended well, but {job.folder} shows no result")
        time.sleep(1.0)
    return None


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines of a log that hold text; a progress bar's overwritten states count as lines."""
    if not log.exists():
        return []
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 500 * count))
        text = stream.read().decode(errors="replace").replace("\r", "\n")
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]


def one_line(text: object) -> str:
    return " ".join(str(text).split()) or "no message"
