"""Dask: one cell is one task, on any `distributed` cluster whose machines share the project's folder.

Where a worker dies, Dask runs its task again elsewhere, from the last checkpoint. Tasks are published, so they go on
while nobody looks, and a command that is started again joins them. A cell's folder holds a note as long as its task is
wanted: Dask cannot stop a task that runs, but the task looks at the note.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future as Promise
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from safeecgmatch.errors import UserError
from safeecgmatch.files import write_text
from safeecgmatch.launching.board import Board
from safeecgmatch.launching.cluster import Cluster, load_cluster
from safeecgmatch.launching.jobs import (
    Detached,
    Failure,
    Job,
    Means,
    failure_of,
    need,
    one_line,
    start,
)
from safeecgmatch.launching.scratch import scratch_root

if TYPE_CHECKING:
    from distributed import Client, Future

PREFIX = "safeecgmatch "
NOTE = "dask"
SECONDS_TO_CONNECT = 10.0
SECONDS_BETWEEN_LOOKS = 1.0


def check(cluster: Cluster) -> None:
    """One sentence where no scheduler can be reached."""
    need("distributed", "dask")
    connect(cluster.dask.scheduler).close()


def launch(jobs: Sequence[Job], report: Board, means: Means) -> list[Failure]:
    address = means.cluster.dask.scheduler
    with connect(address) as client:
        try:
            return follow(client, jobs, report, means)
        except KeyboardInterrupt:
            raise Detached(
                f"The cells go on at {address}. Start the same command again to look at them and to take in what is "
                f"done; `{Path(sys.executable).name} -m safeecgmatch.launching.dask` cancels them."
            ) from None
        except OSError:
            if client.status == "running":
                raise
            raise UserError(
                f"The Dask scheduler at {address} is gone; start the same command when it is back."
            ) from None


def connect(address: str | None) -> Client:
    """A client of the scheduler that cluster.yaml names, or one sentence."""
    from distributed import Client

    if address is None:
        raise UserError("cluster.yaml names no scheduler: set dask.scheduler, such as tcp://127.0.0.1:8786.")
    answer: Promise[Client] = Promise()

    def dial() -> None:
        try:
            answer.set_result(Client(address, timeout=SECONDS_TO_CONNECT, set_as_default=False))
        except Exception as error:  # whatever it is, it is raised below
            answer.set_exception(error)

    Thread(target=dial, daemon=True).start()  # a client waits for ever where something listens and says nothing
    try:
        return answer.result(2 * SECONDS_TO_CONNECT)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"No Dask scheduler answers at {address} ({one_line(error)}): start it, or correct dask.scheduler in "
            "cluster.yaml, and for tls:// the TLS files in Dask's own configuration."
        ) from None


def follow(client: Client, jobs: Sequence[Job], report: Board, means: Means) -> list[Failure]:
    """Submit what is not on the scheduler yet, and report what becomes of all tasks until the last has ended."""
    waiting, failures = deque(jobs), []
    tasks: dict[Job, Future] = {}
    running: set[Job] = set()
    if known := len({task_name(job) for job in jobs}.intersection(client.list_datasets())):
        print(f"On the scheduler already: {known} of the cells; nothing is submitted twice.", file=sys.stderr)
    if not client.scheduler_info()["workers"]:
        print("The scheduler has no workers yet; cells wait for the first.", file=sys.stderr)
    while waiting or tasks:
        while waiting and len(tasks) < (means.at_once or len(jobs)):
            job = waiting.popleft()
            tasks[job] = submit(client, job, means)
        for job, task in list(tasks.items()):
            if client.status != "running":
                raise ConnectionError
            if task.cancelled() and task_name(job) in client.list_datasets():
                tasks[job] = submit(client, job, means)  # the client was cut off for a moment, the task was not
            elif task.done():
                failure = outcome(job, task)
                failures += [failure] if failure else []
                forget(client, tasks.pop(job), task_name(job))
                report.finished(job, failure)
            elif job.log.exists() and job not in running:
                running.add(job)
                report.started(job)
        report.tick()
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return failures


def submit(client: Client, job: Job, means: Means) -> Future:
    """The task that trains `job`; a new one if the scheduler has none."""
    name = task_name(job)
    if name in client.list_datasets():
        return client.get_dataset(name)
    job.log.unlink(missing_ok=True)
    write_text(job.folder / NOTE, name)
    task = client.submit(train, job, means, key=name, pure=False)
    client.publish_dataset(task, name=name)
    return task


def train(job: Job, means: Means) -> int:
    """The task, on a worker: the cell as a process of its own; its exit status."""
    process = start(job, means, own_session=True)  # Ctrl-C in the worker's terminal is not meant for the cell
    while process.poll() is None:
        if not (job.folder / NOTE).exists():
            process.terminate()  # withdrawn; the checkpoint stays
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return process.returncode


def outcome(job: Job, task: Future) -> Failure | None:
    if task.status == "finished":
        return failure_of(job, task.result())
    error = task.exception() if task.status == "error" else f"the task was {task.status} on the scheduler"
    return Failure(job, one_line(error))


def task_name(job: Job) -> str:
    return f"{PREFIX}{job.folder}"


def forget(client: Client, task: Future, name: str) -> None:
    """Take a task, which may have ended, from the scheduler."""
    Path(name.removeprefix(PREFIX), NOTE).unlink(missing_ok=True)
    client.unpublish_dataset(name)
    client.cancel([task], force=True)


def withdraw() -> None:
    """Take all tasks of this project from the scheduler of cluster.yaml; workers stop them within seconds."""
    address = load_cluster().dask.scheduler
    with connect(address) as client:
        names = [name for name in client.list_datasets() if name.startswith(f"{PREFIX}{scratch_root()}/")]
        for name in names:
            forget(client, client.get_dataset(name), name)
        print(f"Cells withdrawn: {len(names)}, from {address}.")


if __name__ == "__main__":
    try:
        withdraw()
    except UserError as error:
        sys.exit(f"Error: {error}")
