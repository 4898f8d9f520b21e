"""Dask: cells on the workers of any `distributed` cluster, which share no files with this machine.

A cell is one task. Its worker gets what the cell reads once (`dask_worker.py`), and the finished folder is the task's
result. Where a worker dies, Dask runs its task again elsewhere. Tasks are published under the cell's fingerprint, so
they go on while nobody looks, and a command that is started again joins them.
"""

from __future__ import annotations

import pickle
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future as Delivery
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safeecgmatch.cells import Cell
from safeecgmatch.errors import UserError
from safeecgmatch.files import atomic_path, hash_of, read_yaml, sha256_of, write_json, write_text
from safeecgmatch.launching.cluster import Cluster, Dask, load_cluster
from safeecgmatch.launching.jobs import Detached, Failure, Job, Means, Report, command
from safeecgmatch.launching.registry import need
from safeecgmatch.launching.scratch import Scratch

if TYPE_CHECKING:
    from distributed import Client, Future

    from safeecgmatch.launching.dask_worker import Answer, Item, Order

PREFIX = "safeecgmatch-"
SECONDS_TO_CONNECT = 20
SECONDS_BETWEEN_LOOKS = 1.0
BYTES_AT_ONCE = 16 * 2**20
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
    security = Security(require_encryption=True, **tls) if tls else None
    try:
        return Client(settings.scheduler, timeout=SECONDS_TO_CONNECT, security=security, set_as_default=False)
    except (OSError, TimeoutError, ValueError, TypeError) as error:
        raise UserError(
            f"No Dask scheduler answers at {settings.scheduler} ({' '.join(str(error).split())}): "
            "start it, or correct dask.scheduler in cluster.yaml."
        ) from None


class Home:
    """This end of the cluster: gives orders, delivers inputs to workers that ask, takes results in."""

    def __init__(self, client: Client, jobs: Sequence[Job], report: Report, means: Means) -> None:
        self.client, self.jobs, self.report, self.means = client, list(jobs), report, means
        self.remote = dvc_remote()
        self.by_key = {key_of(job): job for job in jobs}
        self.items: dict[str, tuple[Item, Path]] = {}
        self.running: dict[str, str] = {}  # a task's key and the worker that trains it
        self.deliveries: dict[tuple[str, str], Delivery[None]] = {}
        self.threads = ThreadPoolExecutor(4, "delivery")

    def __enter__(self) -> Home:
        from safeecgmatch.launching import dask_worker

        self.client.subscribe_topic(dask_worker.NEEDS, lambda event: self.deliver(event[1]))
        self.client.subscribe_topic(dask_worker.PROGRESS, lambda event: self.progress(event[1]))
        return self

    def __exit__(self, *error: object) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)

    def follow(self) -> list[Failure]:
        waiting = list(self.jobs)
        published = set(self.client.list_datasets())
        known = sum(key_of(job) in published for job in waiting)
        if known:
            print(f"{known} cells are on the scheduler already; nothing is submitted twice.", file=sys.stderr)
        if not self.client.scheduler_info()["workers"]:
            print("The scheduler has no workers yet; cells wait for the first.", file=sys.stderr)
        futures: dict[Job, Future] = {}
        failures: list[Failure] = []
        while waiting or futures:
            while waiting and len(futures) < (self.means.at_once or len(self.jobs)):
                job = waiting.pop(0)
                futures[job] = self.submit(job, key_of(job) in published)
            for job, future in list(futures.items()):
                if future.done():
                    failure = self.take_in(job, future)
                    failures += [failure] if failure else []
                    self.running.pop(key_of(job), None)
                    del futures[job]
                    self.report.finished(job, failure)
            if self.client.status == "closed":
                raise UserError("The Dask scheduler is gone; start it and run the same command again.")
            self.notice_lost_workers()
            self.report.tick()
            time.sleep(SECONDS_BETWEEN_LOOKS)
        return failures

    def submit(self, job: Job, published: bool) -> Future:
        from safeecgmatch.launching import dask_worker

        order = self.order(job)  # for a task that is known already, too: its worker may ask for inputs
        if published:
            return self.client.get_dataset(key_of(job))
        task = by_value(dask_worker.train)
        future = self.client.submit(task, order, key=key_of(job), pure=False)
        self.client.publish_dataset(future, name=key_of(job))
        return future

    def order(self, job: Job) -> Order:
        from safeecgmatch.launching.dask_worker import HERE

        here = Path(HERE)
        snapshot = self.item("", self.means.snapshot)
        data = [self.item(place, self.means.data / place) for place in places(job.cell)]
        data_key = hash_of([item["key"] for item in data])
        folder = f"{job.cell.path}/{job.folder.name}"
        arguments, environment, _ = command(
            job, self.means, here / "scratch" / folder, here / "data" / data_key, here / "inputs" / snapshot["key"]
        )
        return {
            "arguments": arguments,
            "environment": environment,
            "folder": folder,
            "snapshot": snapshot,
            "data": data,
            "data_key": data_key,
            "remote": self.remote,
        }

    def item(self, place: str, folder: Path) -> Item:
        known = next((item for item, source in self.items.values() if source == folder), None)
        if known is not None:
            return known
        names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
        files = {name: sha256_of(folder / name) for name in names if "__pycache__" not in name}
        md5 = dvc_hash(f"data/{place}") if place and self.remote else ""
        item: Item = {"key": hash_of(files), "place": place, "files": files, "md5": md5}
        self.items[item["key"]] = item, folder
        return item

    def deliver(self, request: Mapping[str, str]) -> None:
        """A worker asks for an item: send it, unless that has begun. Called in the client's event loop."""
        wish = request["worker"], request["key"]
        begun = self.deliveries.get(wish)
        if request["key"] in self.items and (begun is None or begun.done()):
            self.deliveries[wish] = self.threads.submit(self.send, *wish)

    def send(self, worker: str, key: str) -> None:
        from safeecgmatch.launching import dask_worker

        item, folder = self.items[key]
        part = f"{key}.{uuid.uuid4().hex}"
        for name in item["files"]:
            with (folder / name).open("rb") as stream:
                while True:
                    chunk = stream.read(BYTES_AT_ONCE)
                    self.client.run(by_value(dask_worker.receive), part, name, chunk, workers=[worker])
                    if len(chunk) < BYTES_AT_ONCE:
                        break
        self.client.run(by_value(dask_worker.complete), item, part, workers=[worker])

    def progress(self, told: Mapping[str, Any]) -> None:
        """How far a cell is, for the board; also that it has been started, here or on another worker."""
        job = self.by_key.get(told["key"])
        if job is None:
            return
        if self.running.get(told["key"]) != told["worker"]:
            self.running[told["key"]] = told["worker"]
            self.report.started(job)
        if told["progress"] is not None and not Scratch(job.folder).finished.exists():
            write_json(Scratch(job.folder).progress, told["progress"])

    def notice_lost_workers(self) -> None:
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
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
            for name, content in answer["files"].items():
                target = partial / Path(name).relative_to("finished") if name.startswith("finished/") else None
                if target is not None:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(content)
        if "mlflow.json" in answer["files"]:
            scratch.mlflow.write_bytes(answer["files"]["mlflow.json"])
        problem = scratch.problem()
        return Failure(job, f"the result that came home {problem}") if problem else None


def places(cell: Cell) -> tuple[str, str]:
    """What a cell reads, below data/."""
    return f"filtered/{cell.dataset}", f"splits/{cell.dataset}/{cell.ood}/{cell.seed}"


def key_of(job: Job) -> str:
    return f"{PREFIX}{job.cell.path}/{job.folder.name}"


class ByValue:
    """Pickles as the function itself, with its module's code: a worker needs no installation of ours."""

    def __init__(self, function: Callable[..., Any]) -> None:
        import cloudpickle

        cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
        self.content: bytes = cloudpickle.dumps(function)

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self.content,)

    def __call__(self) -> None:
        raise NotImplementedError("it is called on a worker, as the function that it stands for")


def by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    return ByValue(function)


def dvc_remote() -> dict[str, str]:
    """The options of DVC's default remote as the project's .dvc/config has them, or nothing.

    Not those of config.local, which may hold passwords: a worker has its own credentials or asks home.
    """
    from dvc.config import Config
    from dvc.exceptions import NotDvcRepoError

    try:
        name = Config.from_cwd()["core"].get("remote")
        remotes = Config.from_cwd().read("repo").get("remote", {})
    except NotDvcRepoError:
        return {}
    return {option: str(value) for option, value in remotes.get(name, {}).items()}


def dvc_hash(path: str) -> str:
    """By which DVC's cache and remotes know an output of the pipeline, from dvc.lock; or nothing."""
    stages = read_yaml(Path("dvc.lock"))["stages"] if Path("dvc.lock").exists() else {}
    outputs = (output for stage in stages.values() for output in stage.get("outs", ()))
    return next((str(output["md5"]) for output in outputs if output["path"] == path), "")


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
        print(f"{len(names)} cells withdrawn from {settings.scheduler}.")


if __name__ == "__main__":
    try:
        cancel()
    except UserError as error:
        sys.exit(f"Error: {error}")
