"""Cells on this machine, forked by multiprocessing's fork server, which has imported torch; with GPUs, one on each.

The fork server is started by the first cell, with the snapshot's code, and lives as long as this process.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from safeecgmatch.errors import UserError
from safeecgmatch.launching.board import Board
from safeecgmatch.launching.cluster import Cluster
from safeecgmatch.launching.jobs import Failure, Job, Means, environment, failure_of

SECONDS_BETWEEN_TICKS = 0.2
SECONDS_TO_CHECKPOINT = 60.0


def check(cluster: Cluster) -> None:
    """Nothing can be missing: this machine is here."""


def launch(jobs: Sequence[Job], report: Board, means: Means) -> list[Failure]:
    """Train all jobs, as many at a time as `means` says; an interrupt lets those that run write a checkpoint."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["safeecgmatch.launching.preload"])
    waiting, failures = deque(jobs), []
    running: dict[BaseProcess, tuple[Job, str]] = {}
    free = deque(means.gpus or [""] * means.at_once)
    try:
        while waiting or running:
            while waiting and free:
                job, gpu = waiting.popleft(), free.popleft()
                new = context.Process(target=train_forked, args=(job, gpu, means.snapshot, means.data), daemon=True)
                start(new, means.snapshot)
                running[new] = job, gpu
                report.started(job)
            wait([process.sentinel for process in running], SECONDS_BETWEEN_TICKS)
            for process in list(running):
                if process.exitcode is not None:
                    job, gpu = running.pop(process)
                    free.append(gpu)
                    failure = failure_of(job, process.exitcode)
                    failures += [failure] if failure else []
                    report.finished(job, failure)
            report.tick()
    finally:
        stop(running)
    return failures


def start(process: BaseProcess, snapshot: Path) -> None:
    with importing(snapshot):  # every time: a fork server that was killed is started again
        try:
            process.start()
        except (EOFError, OSError):
            raise UserError("The process that cells are forked from did not start; its messages are above.") from None


@contextmanager
def importing(snapshot: Path) -> Iterator[None]:
    """A fork server that is started now imports the snapshot's code, whatever is installed.

    It inherits the environment; since Python 3.12 it also takes over the list of folders to import from.
    """
    before, folders = dict(os.environ), list(sys.path)
    os.environ.update(environment(snapshot))
    sys.path.insert(0, str(snapshot / "src"))
    try:
        yield
    finally:
        sys.path[:] = folders
        os.environ.clear()
        os.environ.update(before)


def train_forked(job: Job, gpu: str, snapshot: Path, data: Path) -> None:
    """In the forked process: train `job` in the snapshot, and print to its log."""
    os.setsid()  # Ctrl-C reaches the launcher alone, which then ends cells in an orderly way
    job.log.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    os.chdir(snapshot)
    from safeecgmatch.launching.train_cell import train_job

    sys.exit(train_job(job.name, job.folder, data, job.uid))


def stop(running: Collection[BaseProcess]) -> None:
    """Let them write their checkpoints; kill what is still there after a minute."""
    for process in running:
        process.terminate()
    deadline = time.monotonic() + SECONDS_TO_CHECKPOINT
    for process in running:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()
