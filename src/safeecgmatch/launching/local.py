"""Jobs as processes of this machine, a given number at once."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from safeecgmatch.launching.jobs import Job, Outcome, Report

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_TO_CHECKPOINT = 60.0


def run_local(
    jobs: Sequence[Job], report: Report, at_once: int, environment: Mapping[str, str] | None = None
) -> list[Outcome]:
    """Run all jobs, `at_once` at a time; a failed one does not stop the others. An interrupt ends those that run."""
    waiting = deque(jobs)
    running: dict[Job, tuple[subprocess.Popen[bytes], float]] = {}
    outcomes: list[Outcome] = []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.popleft()
                running[job] = (_start(job, environment), time.monotonic())
                report.started(job)
            time.sleep(SECONDS_BETWEEN_LOOKS)
            for job, (process, began) in list(running.items()):
                status = process.poll()
                if status is not None:
                    del running[job]
                    outcomes.append(Outcome(job, status, time.monotonic() - began))
                    report.finished(outcomes[-1])
            report.tick()
    finally:
        _stop(process for process, _ in running.values())
    return outcomes


def _start(job: Job, environment: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("wb") as log:
        # A session of its own: Ctrl-C reaches the launcher alone, which then ends its jobs in an orderly way.
        return subprocess.Popen(
            job.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {}), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )


def _stop(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """What Ctrl-C in a terminal does: DVC waits for its cell, the cell writes its checkpoint; SIGKILL for the rest."""
    alive = [process for process in processes if process.poll() is None]
    for process in alive:
        os.killpg(process.pid, signal.SIGINT)
    deadline = time.monotonic() + SECONDS_TO_CHECKPOINT
    for process in alive:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
