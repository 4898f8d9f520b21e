"""What runs on a Dask worker. It is sent there by value: the standard library and `distributed`, nothing of ours.

Below `dask-scratch-space/safeecgmatch` of the worker's local directory, which outlives the worker's process:

    inputs/<key>   the snapshot, the filtered signals of a dataset, a split; brought once, whatever cell needs them
    data/<key>     links to the inputs in the layout of data/
    scratch/...    where cells are trained; a cell that comes back to this worker goes on from its checkpoint
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

from distributed import Worker, get_worker

HERE = "@here@"  # in arguments and environment: the folder above, which home does not know
NEEDS, PROGRESS = "safeecgmatch-needs", "safeecgmatch-progress"  # topics on which a worker speaks to home
SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_BETWEEN_REPORTS = 5.0
SECONDS_BETWEEN_REQUESTS = 20.0
SECONDS_FOR_A_PULL = 6 * 3600.0
BYTES_OF_A_LOG = 20_000


class Item(TypedDict):
    """A folder that a worker needs."""

    key: str
    place: str  # below data/, such as filtered/ptbxl; "" for the snapshot
    files: dict[str, str]  # sha256 of every file
    md5: str  # by which a DVC remote knows it; "" where there is none


class Order(TypedDict):
    """One cell."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str  # below scratch/
    snapshot: Item
    data: list[Item]
    data_key: str
    remote: dict[str, str]  # of DVC: its options, or nothing


class Answer(TypedDict):
    status: int
    log: str  # its end
    finished: dict[str, bytes]  # the files of that folder
    mlflow: dict[str, Any] | None  # the content of mlflow.json, where the worker has uploaded


def place_of(worker: Worker) -> Path:
    return Path(worker.local_directory).parent / "safeecgmatch"


def train(order: Order) -> Answer:
    """The task: inputs, then the cell as a process of its own, then the finished folder as the result."""
    worker = get_worker()
    key = str(worker.get_current_task())
    here = place_of(worker)
    for item in (order["snapshot"], *order["data"]):
        fetch(item, order["remote"], key, worker)
    link_data(here, order)
    folder = here / "scratch" / order["folder"]
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log"
    status = run(order, here, folder, log, key, worker)
    text = log.read_bytes()[-BYTES_OF_A_LOG:].decode(errors="replace")
    if status != 0:
        return {"status": status, "log": text, "finished": {}, "mlflow": None}
    result = folder / "finished"
    files = {file.relative_to(result).as_posix(): file.read_bytes() for file in result.rglob("*") if file.is_file()}
    uploaded = content_of(folder / "mlflow.json")
    shutil.rmtree(folder)
    return {"status": status, "log": text, "finished": files, "mlflow": uploaded}


def run(order: Order, here: Path, folder: Path, log: Path, key: str, worker: Worker) -> int:
    arguments = [sys.executable, *(argument.replace(HERE, str(here)) for argument in order["arguments"][1:])]
    environment = {name: value.replace(HERE, str(here)) for name, value in order["environment"].items()}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            arguments,
            env=os.environ | environment | {"SAFEECGMATCH_PARENT": str(os.getpid())},
            cwd=here / "inputs" / order["snapshot"]["key"],
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the worker's terminal is not meant for the cell
        )
    reported = float("-inf")
    while process.poll() is None:
        if not wanted(key, worker):
            process.terminate()  # the checkpoint stays
            process.wait()
        elif time.monotonic() - reported > SECONDS_BETWEEN_REPORTS:
            reported = time.monotonic()
            worker.log_event(
                PROGRESS, {"key": key, "worker": worker.address, "progress": content_of(folder / "progress.json")}
            )
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return process.returncode


def wanted(key: str, worker: Worker) -> bool:
    """Whether the task was not cancelled meanwhile: Dask forgets it, but cannot stop it."""
    task = worker.state.tasks.get(key)
    return task is not None and task.state in ("executing", "long-running")


def content_of(file: Path) -> Any:
    return json.loads(file.read_text()) if file.exists() else None


def fetch(item: Item, remote: dict[str, str], key: str, worker: Worker) -> None:
    """Bring `item` here: from DVC's remote where that has it, else from home, which listens for requests."""
    target = place_of(worker) / "inputs" / item["key"]
    with alone(target.with_suffix(".lock")):
        if target.is_dir() or (item["md5"] and remote and pull(item, remote, target)):
            return
        asked = float("-inf")
        while not target.is_dir():
            if not wanted(key, worker):
                raise RuntimeError("cancelled while it waited for its inputs")
            if time.monotonic() - asked > SECONDS_BETWEEN_REQUESTS:
                asked = time.monotonic()
                worker.log_event(NEEDS, {"worker": worker.address, "key": item["key"]})
            time.sleep(SECONDS_BETWEEN_LOOKS)


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """One thread of all workers in this folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def pull(item: Item, remote: dict[str, str], target: Path) -> bool:
    """Whether DVC's remote had it. A project of one line: no Git, no graph, no lock file."""
    project = target.with_suffix(f".{uuid.uuid4().hex}")
    (project / ".dvc").mkdir(parents=True)
    options = "\n".join(f"{name} = {value}" for name, value in remote.items())
    settings = (
        "[core]\n    no_scm = true\n    analytics = false\n    remote = home\n[cache]\n    type = hardlink,copy\n"
    )
    (project / ".dvc" / "config").write_text(f"{settings}['remote \"home\"']\n{options}\n")
    content = {"outs": [{"md5": item["md5"], "hash": "md5", "path": "content"}]}
    (project / "content.dvc").write_text(json.dumps(content))  # JSON is YAML
    command = [sys.executable, "-m", "dvc", "pull", "--quiet", "content.dvc"]
    try:
        done = subprocess.run(command, cwd=project, capture_output=True, timeout=SECONDS_FOR_A_PULL, check=False)
        if done.returncode != 0 or trouble(project / "content", item["files"]):
            print(f"DVC's remote did not give {item['place']}, home is asked: {done.stderr.decode().strip()}")
            return False
        (project / "content").rename(target)
    finally:
        shutil.rmtree(project)
    return True


def receive(part: str, name: str, chunk: bytes, dask_worker: Worker) -> None:
    """Called by home: append to one file of an item that is on its way; `part` names the delivery."""
    file = place_of(dask_worker) / "inputs" / part / name
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as stream:
        stream.write(chunk)


def complete(item: Item, part: str, dask_worker: Worker) -> str:
    """Called by home after the last chunk: what is wrong with the delivery, or nothing."""
    inputs = place_of(dask_worker) / "inputs"
    found = trouble(inputs / part, item["files"])
    if not found and not (inputs / item["key"]).exists():
        (inputs / part).rename(inputs / item["key"])
    else:
        shutil.rmtree(inputs / part)
    return found


def trouble(folder: Path, files: dict[str, str]) -> str:
    for name, digest in files.items():
        try:
            with (folder / name).open("rb") as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() != digest:
                    return f"{name} differs"
        except OSError as error:
            return f"{name}: {error.strerror}"
    return ""


def link_data(here: Path, order: Order) -> None:
    for item in order["data"]:
        link = here / "data" / order["data_key"] / item["place"]
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            temporary = link.with_name(f".{uuid.uuid4().hex}")
            temporary.symlink_to(here / "inputs" / item["key"])
            temporary.rename(link)
