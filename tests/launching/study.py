"""The micro study on a cluster, long enough to be disturbed in mid-training, against the same study trained locally."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest
import yaml

from safeecgmatch.cells import Cell
from safeecgmatch.launching import jobs
from safeecgmatch.launching.cluster import Cluster
from safeecgmatch.launching.jobs import Failure, Job, Means
from tests.micro import Project, make_project, micro_params

ITERATIONS = 300
IN_THE_MIDDLE = 30  # checkpoints every 20
# Slow methods are disturbed, which are easily met in mid-training.
KILLED, PREEMPTED = "ptbxl/safeecgmatch/60/1", "ptbxl/safeecgmatch-learned_t/60/1"
REQUEUED, LIMITED = "ptbxl/safeecgmatch-no_cal/60/1", "ptbxl/safeecgmatch-lambda_3.0/60/1"
FAILING = "ptbxl/supervised/60/1"


def make_study(root: Path, **cluster: object) -> Project:
    project = make_project(root)
    train = micro_params()["train"] | {"iterations": ITERATIONS, "epoch": ITERATIONS // 3}
    project.params(train=train, checkpoint_every=20)
    (root / "cluster.yaml").write_text(yaml.safe_dump(cluster))
    project.commit("a longer micro study")
    return project


def job(folder: Path, method: str = "fixmatch") -> Job:
    """One that nobody trains."""
    return Job(Cell("ptbxl", method, 60, 1), folder / method, "uid", folder / f"{method}.log")


def running(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Job, Means]:
    """A job whose process runs this code instead of a training."""
    monkeypatch.setattr(jobs, "arguments", lambda job, means: [sys.executable, "-c", code])
    return replace(job(folder), log=folder / "logs" / "log"), Means(folder, folder / "data", 1, (), Cluster())


class Heard:
    """A board that remembers what it was told, and runs `look` at every tick."""

    def __init__(self, look: Callable[[], None] = lambda: None) -> None:
        self.tick = look
        self.events: list[str] = []
        self.running: set[Job] = set()
        self.most = 0  # at a time

    def started(self, job: Job) -> None:
        self.events.append(f"{job.cell.method} started")
        self.running.add(job)
        self.most = max(self.most, len(self.running))

    def queued(self, job: Job) -> None:
        self.events.append(f"{job.cell.method} queued")

    def finished(self, job: Job, failure: Failure | None) -> None:
        self.events.append(f"{job.cell.method} {'failed' if failure else 'done'}")
        self.running.discard(job)


def outputs(project: Project) -> dict[str, str]:
    """What DVC recorded of every cell, and the numbers made from it; wall times and the like differ, of course."""
    stages = yaml.safe_load((project.root / "dvc.lock").read_text())["stages"]
    recorded = {output["path"]: output["md5"] for stage in stages.values() for output in stage["outs"]}
    return {path: md5 for path, md5 in recorded.items() if path.startswith("runs/") or path.endswith("metrics.csv")}


@contextmanager
def launched(project: Project, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """`safeecgmatch run` in the background, and what it prints."""
    printed = project.root / "printed"
    with printed.open("w") as stream:
        command = [sys.executable, "-m", "safeecgmatch.cli", "run", *arguments]
        process = subprocess.Popen(command, cwd=project.root, env=project.environment, stdout=stream, stderr=stream)
        try:
            yield process, printed
        finally:
            process.terminate()
            process.wait()
            printed.unlink()


def wait_for(what: Callable[[], object], seconds: float = 300.0) -> None:
    """Until `what` is true; an error far beyond the time that it takes."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.2)


def iteration(scratch: Path, cell: str, which: str = "iteration") -> int:
    """How far a cell is in its scratch folder, or where its present process began; 0 before the first one."""
    files = list((scratch / cell).glob("*/progress.json"))
    return json.loads(files[0].read_text())[which] if files else 0


def stopped_in_the_middle(scratch: Path, cell: str) -> int:
    """The process of `cell`, which does no more before SIGCONT: so it cannot end before its trouble comes."""
    wait_for(lambda: iteration(scratch, cell) >= IN_THE_MIDDLE)
    [process] = processes(str(scratch / cell))
    os.kill(process, signal.SIGSTOP)
    return process


def folder_of(project: Project, cell: str) -> str:
    """Below scratch/, once its data are there."""
    code = (
        "import sys; from safeecgmatch.config import load_params; from safeecgmatch.cells import find_cell;"
        "from safeecgmatch.launching.run import make_job; p = load_params();"
        "print(make_job(p, find_cell(p, sys.argv[1])).folder.relative_to(sys.argv[2]))"
    )
    return project.run(sys.executable, "-c", code, cell, str(project.root / "scratch")).strip()


def processes(text: str) -> list[int]:
    """Those whose command line holds `text`."""
    found = psutil.process_iter(["cmdline"])
    return [process.pid for process in found if text in " ".join(process.info["cmdline"] or [])]


def parent(pid: int) -> int:
    return psutil.Process(pid).ppid()


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def open_listeners() -> set[str]:
    """Sockets of this machine that listen on more than loopback."""
    listening = [found.laddr for found in psutil.net_connections("tcp") if found.status == psutil.CONN_LISTEN]
    return {str(address) for address in listening if not ip_address(address.ip.removeprefix("::ffff:")).is_loopback}
