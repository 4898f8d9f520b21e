"""Cells on this machine, as children of one warm process; with GPUs, one cell on each."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence

from safeecgmatch.errors import UserError
from safeecgmatch.launching.cluster import Cluster
from safeecgmatch.launching.jobs import Failure, Job, Means, Report, environment
from safeecgmatch.launching.scratch import Scratch

SECONDS_BETWEEN_TICKS = 0.2


def check(cluster: Cluster) -> None:
    """Nothing can be missing: this machine is here."""


def launch(jobs: Sequence[Job], report: Report, means: Means) -> list[Failure]:
    """Train all jobs, as many at a time as `means` says; an interrupt lets those that run write a checkpoint."""
    waiting, failures = deque(jobs), []
    running: dict[str, tuple[Job, str]] = {}
    free = deque(means.gpus or [""] * means.at_once)
    while waiting or running:
        with WarmProcess(means) as warm:
            while warm.alive and (waiting or running):
                while waiting and free:
                    job, gpu = waiting.popleft(), free.popleft()
                    running[job.name] = (job, gpu)
                    warm.start(job, gpu)
                    report.started(job)
                for path, status in warm.ended(SECONDS_BETWEEN_TICKS):
                    job, gpu = running.pop(path)
                    free.append(gpu)
                    failure = failure_of(job, status)
                    failures += [failure] if failure else []
                    report.finished(job, failure)
                report.tick()
        for job, gpu in running.values():  # the warm process itself was killed, and its children end themselves
            free.append(gpu)
            failures.append(Failure(job, "the process that it was forked from was killed"))
            report.finished(job, failures[-1])
        running.clear()
    return failures


def failure_of(job: Job, status: int) -> Failure | None:
    if status < 0:
        return Failure(job, f"killed by signal {-status} ({signal.Signals(-status).name})")
    if status == 0 and Scratch(job.folder).finished.is_dir():
        return None
    return Failure(job, f"exit status {status}")


class WarmProcess:
    """`warm.py`, running in the snapshot."""

    def __init__(self, means: Means) -> None:
        self.means = means
        self.process = subprocess.Popen(
            [sys.executable, "-m", "safeecgmatch.launching.warm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=means.snapshot,
            env=os.environ | environment(means.snapshot),
            start_new_session=True,  # Ctrl-C reaches the launcher alone, which then ends cells in an orderly way
        )
        self.alive, self.buffer = True, b""

    def __enter__(self) -> WarmProcess:
        if not any("ready" in message for message in self._messages(None)):
            raise UserError("The process that trains cells did not start; its messages are above.")
        return self

    def start(self, job: Job, gpu: str) -> None:
        job.log.parent.mkdir(parents=True, exist_ok=True)
        order = {"path": job.name, "folder": str(job.folder), "data": str(self.means.data), "uid": job.uid}
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `ended` finds out
            self.process.stdin.write(json.dumps(order | {"log": str(job.log), "gpu": gpu}).encode() + b"\n")
            self.process.stdin.flush()

    def ended(self, seconds: float) -> list[tuple[str, int]]:
        return [(message["path"], message["status"]) for message in self._messages(seconds)]

    def _messages(self, seconds: float | None) -> list[dict]:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return []
        said = os.read(self.process.stdout.fileno(), 65536)
        self.alive = bool(said)
        *lines, self.buffer = (self.buffer + said).split(b"\n")
        return [json.loads(line) for line in lines]

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()  # its children write checkpoints, then it ends
        self.process.wait()
