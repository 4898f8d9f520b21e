"""A cell's folder below scratch/, in which it is trained and where its finished result waits for DVC.

    checkpoint.pt  the training's state, while it runs
    record.json    the start of run.json: uid, commit, code ...
    config.yaml    the resolved config
    history.csv    grows with every evaluation
    progress.json  how far it is, for the board
    mlflow.json    the run's id, and whether MLflow has everything
    lock           held, and signed with its process id, by the process that trains
    finished/      appears by one rename: run/ (all files of runs/<cell>), run.json, finished.json (a hash of each file)

The folder's name is the cell's fingerprint, so experiments that train the same cell side by side do not meet. When DVC
has recorded the cell, the folder goes and an empty file scratch/recorded/<fingerprint> says that DVC's cache has it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safeecgmatch.files import atomic_path, project_root, read_json, sha256_of, write_json
from safeecgmatch.tracking.record import RECORD_FILE, CellFiles

SEAL = "finished.json"


class Scratch:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoint = folder / "checkpoint.pt"
        self.record = folder / "record.json"
        self.config = folder / "config.yaml"
        self.history = folder / "history.csv"
        self.progress = folder / "progress.json"
        self.mlflow = folder / "mlflow.json"
        self.finished = folder / "finished"

    @classmethod
    def of(cls, path: str, fingerprint: str) -> Scratch:
        return cls(scratch_root() / path / fingerprint)

    def uid(self) -> str:
        """Of the run that was begun here, so that it is continued; else a new one."""
        return read_json(self.record)["uid"] if self.record.exists() else uuid.uuid4().hex

    def is_logged(self) -> bool:
        """Whether MLflow has everything of the finished result."""
        return self.mlflow.exists() and read_json(self.mlflow)["logged"]

    def files(self) -> CellFiles | None:
        """What there is to upload to MLflow; nothing before the cell begins."""
        if (self.finished / SEAL).exists():
            return CellFiles(self.finished / RECORD_FILE, self.finished / "run", finished=True)
        return CellFiles(self.record, self.folder, finished=False) if self.record.exists() else None

    def uploaded(self, run_id: str, logged: bool) -> None:
        write_json(self.mlflow, {"run_id": run_id, "logged": logged})

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One process at a time; the operating system frees it when its holder dies."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("a+") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"{self.folder}: another process trains this cell; waiting for it.", file=sys.stderr, flush=True)
                fcntl.flock(stream, fcntl.LOCK_EX)
            stream.truncate(0)
            stream.write(f"{os.getpid()}\n")
            stream.flush()
            yield

    @contextmanager
    def sealing(self, fingerprint: str) -> Iterator[Path]:
        """Yield a folder to be filled; it becomes `finished/` with a seal over all that was written to it."""
        with atomic_path(self.finished, durable=True) as partial:
            partial.mkdir()
            yield partial
            files = {name: sha256_of(partial / name) for name in _files(partial)}
            write_json(partial / SEAL, {"fingerprint": fingerprint, "files": files})

    def verify(self) -> bool:
        """Whether there is a good finished result; a bad one is set aside, and told."""
        if not self.finished.is_dir():
            return False
        if problem := self.problem():
            rejected = self.folder / "rejected"
            shutil.rmtree(rejected, ignore_errors=True)
            self.finished.replace(rejected)
            print(f"The finished result in {self.folder} {problem}; it is not used.", flush=True)
        return not problem

    def problem(self) -> str:
        """Why the finished result must not be used, as the end of a sentence; "" for a good one."""
        try:
            seal = read_json(self.finished / SEAL)
            fingerprint, files = seal["fingerprint"], dict(seal["files"])
        except (OSError, json.JSONDecodeError, KeyError, TypeError, ValueError):
            return f"has no readable {SEAL}"
        if fingerprint != self.folder.name:
            return f"is of the fingerprint {fingerprint}"
        present = {name for name in _files(self.finished) if name != SEAL}
        if present != set(files):
            return f"has other files than it was written with ({', '.join(sorted(present ^ set(files)))})"
        changed = [name for name, digest in sorted(files.items()) if sha256_of(self.finished / name) != digest]
        return f"was truncated or edited after it was written ({', '.join(changed)})" if changed else ""

    @property
    def recorded(self) -> Path:
        """Exists where DVC has recorded a result of this fingerprint once, so that its run cache can restore it."""
        return scratch_root() / "recorded" / self.folder.name

    def discard(self) -> None:
        """DVC has recorded the cell: its folder goes, with parents that are empty then."""
        self.recorded.parent.mkdir(parents=True, exist_ok=True)
        self.recorded.touch()
        if self.folder.is_dir():
            shutil.rmtree(self.folder)
            for parent in self.folder.parents[:4]:  # seed, OOD level, method, dataset
                if any(parent.iterdir()):
                    break
                parent.rmdir()


def scratch_root() -> Path:
    return project_root() / "scratch"


def _files(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
