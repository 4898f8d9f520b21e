"""What Dask workers read - the snapshot, filtered signals, splits - and how it reaches those that ask home for it."""

from __future__ import annotations

import pickle
import sys
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safeecgmatch.files import hash_of, read_yaml, sha256_of

if TYPE_CHECKING:
    from distributed import Client

    from safeecgmatch.launching.dask_worker import Item

BYTES_AT_ONCE = 16 * 2**20
WORKERS_AT_ONCE = 4


class ByValue:
    """Pickles as the function itself, with its module's code: a worker needs no installation of ours."""

    def __init__(self, function: Callable[..., Any]) -> None:
        import cloudpickle

        cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
        self.content: bytes = cloudpickle.dumps(function)

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self.content,)

    def __call__(self) -> None:
        raise TypeError("it is called on a worker, as the function that it stands for")


class Inputs:
    """Every folder that some cell needs, by a hash of its content."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.remote = dvc_remote()
        self.items: dict[str, Item] = {}
        self.folders: dict[str, Path] = {}
        self.deliveries: dict[tuple[str, str], Future[None]] = {}
        self.threads = ThreadPoolExecutor(WORKERS_AT_ONCE, "delivery")

    def item(self, folder: Path, place: str = "") -> Item:
        """The snapshot, or what stands at `place` below data/."""
        for key, known in self.folders.items():
            if known == folder:
                return self.items[key]
        names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
        files = {name: sha256_of(folder / name) for name in names if "__pycache__" not in name}
        md5 = dvc_hash(f"data/{place}") if place and self.remote else ""
        item: Item = {"key": hash_of(files), "place": place, "files": files, "md5": md5}
        self.folders[item["key"]] = folder
        self.items[item["key"]] = item
        return item

    def deliver(self, request: Mapping[str, str]) -> None:
        """A worker asks for an item: send it, unless that has begun. Called in the client's own thread."""
        wish = request["worker"], request["key"]
        begun = self.deliveries.get(wish)
        if request["key"] in self.items and (begun is None or begun.done()):
            self.deliveries[wish] = self.threads.submit(self.send, *wish)

    def send(self, worker: str, key: str) -> None:
        """In pieces, so that neither end holds gigabytes in memory; a worker that dies meanwhile asks no more."""
        from safeecgmatch.launching.dask_worker import complete, receive

        part = f"{key}.{uuid.uuid4().hex}"
        for name in self.items[key]["files"]:
            with (self.folders[key] / name).open("rb") as stream:
                more = True
                while more:
                    chunk = stream.read(BYTES_AT_ONCE)
                    self.client.run(ByValue(receive), part, name, chunk, workers=[worker])
                    more = len(chunk) == BYTES_AT_ONCE
        self.client.run(ByValue(complete), self.items[key], part, workers=[worker])

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)


def dvc_remote() -> dict[str, str]:
    """The options of DVC's default remote as the project's .dvc/config has them, or nothing.

    Not those of config.local, which may hold passwords: a worker has its own credentials, or asks home.
    """
    from dvc.config import Config

    config = Config.from_cwd()
    if config.dvc_dir is None:
        return {}
    options = config.read("repo").get("remote", {}).get(config["core"].get("remote"), {})
    return {option: str(value) for option, value in options.items()}


def dvc_hash(path: str) -> str:
    """By which DVC's cache and remotes know an output of the pipeline, from dvc.lock; or nothing."""
    stages = read_yaml(Path("dvc.lock"))["stages"] if Path("dvc.lock").exists() else {}
    outputs = (output for stage in stages.values() for output in stage.get("outs", ()))
    return next((str(output["md5"]) for output in outputs if output["path"] == path), "")
