"""Dask: cells on the workers of any `distributed` cluster, which share no files with this machine.

A cell is one task. Its worker gets what the cell reads once (`dask_worker.py`), and the finished folder is the task's
result. Where a worker dies, Dask runs its task again elsewhere. Tasks are published under the cell's fingerprint, so
they go on while nobody looks, and a command that is started again joins them.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from safeecgmatch.cells import Cell
from safeecgmatch.errors import UserError
from safeecgmatch.files import atomic_path, hash_of, write_json, write_text
from safeecgmatch.launching.cluster import Cluster, Dask, load_cluster
from safeecgmatch.launching.dask_inputs import ByValue, Inputs
from safeecgmatch.launching.jobs import Detached, Failure, Job, Means, Report, command
from safeecgmatch.launching.registry import need
from safeecgmatch.launching.scratch import Scratch

if TYPE_CHECKING:
    from distributed import Client, Future, Security

    from safeecgmatch.launching.dask_worker import Answer, Order

PREFIX = "safeecgmatch-"
SECONDS_TO_CONNECT = 10
SECONDS_TO_GREET = 5
SECONDS_BETWEEN_LOOKS = 1.0
PASSED_ON = ("MLFLOW_TRACKING_URI",)  # of home's environment


def check(cluster: Cluster) -> None:
    """One sentence where no scheduler can be reached."""
    need("distributed", "dask")
    connect(cluster.dask).close()


def launch(jobs: Sequence[Job], report: Report, means: Means) -> list[Failure]:
    with connect(means.cluster.dask) as client, Home(client, jobs, report, means) as home:
        try:
            return home.follow()
        except KeyboardInterrupt:
            raise Detached(farewell(means.cluster.dask)) from None


def connect(settings: Dask) -> Client:
    """A client of the scheduler that cluster.yaml names, or one sentence."""
    from distributed import Client, Security

    if settings.scheduler is None:
        raise UserError("cluster.yaml names no scheduler: set dask.scheduler, such as tcp://127.0.0.1:8786.")
    names = ("tls_ca_file", "tls_client_cert", "tls_client_key")
    tls = {name: value for name in names if (value := getattr(settings, name)) is not None}
    if tls and not settings.scheduler.startswith("tls://"):
        raise UserError(
            f"cluster.yaml names TLS files, so dask.scheduler begins with tls://, not {settings.scheduler}."
        )
    security = Security(require_encryption=True, **tls) if tls else Security()  # else what Dask's own config says
    try:
        listen(settings.scheduler, security)
        return Client(settings.scheduler, timeout=SECONDS_TO_CONNECT, security=security, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"No Dask scheduler answers at {settings.scheduler} ({' '.join(str(error).split())}): "
            "start it, or correct dask.scheduler in cluster.yaml, and its TLS files if it has any."
        ) from None


def listen(address: str, security: Security) -> None:
    """Wait for a scheduler's greeting: a client would wait for ever where something listens and says nothing."""
    from distributed.comm.addressing import parse_address, parse_host_port

    scheme, place = parse_address(address)
    if scheme not in ("tcp", "tls"):
        return
    host, port = parse_host_port(place, 8786)
    with socket.create_connection((host, port), timeout=SECONDS_TO_CONNECT) as plain:
        plain.settimeout(SECONDS_TO_GREET)
        context = security.get_connection_args("client").get("ssl_context")
        if context is None:
            greeting = plain.recv(1)
        else:
            with context.wrap_socket(plain, server_hostname=host) as encrypted:
                greeting = encrypted.recv(1)
    if not greeting:
        raise OSError("it hung up")


class Home:
    """This end of the cluster: gives orders, delivers inputs to workers that ask, takes results in."""

    def __init__(self, client: Client, jobs: Sequence[Job], report: Report, means: Means) -> None:
        self.client, self.jobs, self.report, self.means = client, list(jobs), report, means
        self.inputs = Inputs(client)
        for folder in sorted(means.snapshot.parent.iterdir()):  # of earlier submissions too, which may still wait
            self.inputs.item(folder)
        self.by_key = {key_of(job): job for job in jobs}
        self.running: dict[str, str] = {}  # a task's key and the worker that trains it
        self.told: SimpleQueue[dict[str, Any]] = SimpleQueue()  # by workers, to the client's own thread

    def __enter__(self) -> Home:
        return self

    def __exit__(self, *error: object) -> None:
        self.inputs.close()

    def listen_to_workers(self) -> None:
        from safeecgmatch.launching.dask_worker import NEEDS, PROGRESS

        self.client.subscribe_topic(NEEDS, lambda event: self.inputs.deliver(event[1]))
        self.client.subscribe_topic(PROGRESS, lambda event: self.told.put(event[1]))

    def connected(self) -> bool:
        """False while the client tries to reach a scheduler that it has lost; it gives up after some seconds."""
        if self.client.status in ("closing", "closed"):
            raise UserError("The Dask scheduler is gone; start it and run the same command again.")
        return self.client.status == "running"

    def follow(self) -> list[Failure]:
        self.listen_to_workers()
        waiting = list(self.jobs)
        published = set(self.client.list_datasets())
        known = sum(key_of(job) in published for job in waiting)
        if known:
            print(f"On the scheduler already: {known} of the cells; nothing is submitted twice.", file=sys.stderr)
        if not self.client.scheduler_info()["workers"]:
            print("The scheduler has no workers yet; cells wait for the first.", file=sys.stderr)
        futures: dict[Job, Future] = {}
        failures: list[Failure] = []
        while waiting or futures:
            if not self.connected():
                time.sleep(SECONDS_BETWEEN_LOOKS)
                continue
            while waiting and len(futures) < (self.means.at_once or len(self.jobs)):
                job = waiting.pop(0)
                futures[job] = self.submit(job, key_of(job) in published)
            for job, future in list(futures.items()):
                if future.cancelled() and key_of(job) in self.client.list_datasets():
                    self.listen_to_workers()  # the client was cut off for a while, the task was not
                    futures[job] = self.submit(job, True)
                elif future.done():
                    failure = self.take_in(job, future)
                    failures += [failure] if failure else []
                    self.running.pop(key_of(job), None)
                    del futures[job]
                    self.report.finished(job, failure)
            while not self.told.empty():
                self.progress(self.told.get())
            self.notice_lost_workers()
            self.report.tick()
            time.sleep(SECONDS_BETWEEN_LOOKS)
        return failures

    def submit(self, job: Job, published: bool) -> Future:
        from safeecgmatch.launching import dask_worker

        order = self.order(job)  # for a task that is known already, too: its worker may ask for inputs
        if published:
            return self.client.get_dataset(key_of(job))
        future = self.client.submit(ByValue(dask_worker.train), order, key=key_of(job), pure=False)
        self.client.publish_dataset(future, name=key_of(job))
        return future

    def order(self, job: Job) -> Order:
        from safeecgmatch.launching.dask_worker import HERE

        here = Path(HERE)
        snapshot = self.inputs.item(self.means.snapshot)
        data = [self.inputs.item(self.means.data / place, place) for place in places(job.cell)]
        data_key = hash_of([item["key"] for item in data])
        folder = f"{job.cell.path}/{job.folder.name}"
        arguments, environment, _ = command(
            job, self.means, here / "scratch" / folder, here / "data" / data_key, here / "inputs" / snapshot["key"]
        )
        return {
            "arguments": arguments,
            "environment": environment | {name: os.environ[name] for name in PASSED_ON if name in os.environ},
            "folder": folder,
            "snapshot": snapshot,
            "data": data,
            "data_key": data_key,
            "remote": self.inputs.remote,
        }

    def progress(self, told: Mapping[str, Any]) -> None:
        """How far a cell is, for the board; also that it has been started, here or on another worker."""
        job = self.by_key.get(told["key"])
        if job is None or Scratch(job.folder).finished.exists():
            return
        if self.running.get(told["key"]) != told["worker"]:
            self.running[told["key"]] = told["worker"]
            self.report.started(job)
        if told["progress"] is not None:
            write_json(Scratch(job.folder).progress, told["progress"])

    def notice_lost_workers(self) -> None:
        workers = self.client.scheduler_info(n_workers=-1).get("workers", {})
        for key, worker in list(self.running.items()):
            if worker not in workers:
                del self.running[key]
                self.report.queued(self.by_key[key])

    def take_in(self, job: Job, future: Future) -> Failure | None:
        """The finished folder, put where the cell would have been trained here; or why there is none."""
        answer: Answer | None = future.result() if future.status == "finished" else None
        error = future.exception() if future.status == "error" else None
        self.client.unpublish_dataset(key_of(job))
        if answer is None:
            return Failure(job, " ".join(str(error or f"the task was {future.status} on the scheduler").split()))
        write_text(job.log, answer["log"])
        if answer["status"] != 0:
            status = answer["status"]
            return Failure(job, f"exit status {status}" if status > 0 else f"killed by signal {-status}")
        scratch = Scratch(job.folder)
        with atomic_path(scratch.finished) as partial:
            for name, content in answer["finished"].items():
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                (partial / name).write_bytes(content)
        if answer["mlflow"] is not None:
            write_json(scratch.mlflow, answer["mlflow"])
        problem = scratch.problem()
        return Failure(job, f"the result that came home {problem}") if problem else None


def places(cell: Cell) -> tuple[str, str]:
    """What a cell reads, below data/."""
    return f"filtered/{cell.dataset}", f"splits/{cell.split_path}"


def key_of(job: Job) -> str:
    return f"{PREFIX}{job.cell.path}/{job.folder.name}"


def farewell(settings: Dask) -> str:
    return (
        f"The cells go on at {settings.scheduler}. Start the same command again to look at them and to take in "
        f"what is done; `{Path(sys.executable).name} -m safeecgmatch.launching.dask` cancels them."
    )


def cancel() -> None:
    """Withdraw all our tasks from the scheduler of cluster.yaml; workers stop them within seconds."""
    settings = load_cluster().dask
    with connect(settings) as client:
        names = [name for name in client.list_datasets() if str(name).startswith(PREFIX)]
        futures = [client.get_dataset(name) for name in names]
        for name in names:
            client.unpublish_dataset(name)
        client.cancel(futures, force=True)
        print(f"Cells withdrawn: {len(names)}, from {settings.scheduler}.")


if __name__ == "__main__":
    try:
        cancel()
    except UserError as error:
        sys.exit(f"Error: {error}")
