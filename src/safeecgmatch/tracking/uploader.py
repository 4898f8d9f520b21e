"""The one path to MLflow: follow a cell's files, the history while it grows, then the rest.

    with Following(uri) as uploader:         # a process of its own, so a server that hangs or dies does so there
        uploader.follow(scratch_folder)      # now or at any time; its mlflow.json tells what became of it
        ...                                  # train; leaving waits for the rest, 10 seconds for a server at most

`backfill` sends finished cells from runs/ and tracking/ the same way. Run as a program, this is the following process:
one folder per line on standard input, whose end means that nothing will be trained any more.
"""

from __future__ import annotations

import contextlib
import csv
import os
import select
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safeecgmatch.errors import UserError
from safeecgmatch.files import project_root, read_json, read_yaml, write_json
from safeecgmatch.launching.scratch import SEAL, Scratch
from safeecgmatch.progress import Progress
from safeecgmatch.tracking.address import (
    ARTIFACTS,
    child_environment,
    ensure_store,
    is_remote,
    lock,
    tracking_uri,
)
from safeecgmatch.tracking.record import RECORD_FILE, Json, milliseconds, now, numbers

if TYPE_CHECKING:
    from safeecgmatch.tracking.store import Store

SECONDS_FOR_THE_SERVER = 10.0  # to wait for it, in total
SECONDS_FOR_THIS_MACHINE = 300.0  # to import mlflow and to write to a local store, however busy it is
SECONDS_BETWEEN_LOOKS = 2.0
SECONDS_AFTER_TROUBLE = 30.0
# An MLflow client left to itself retries an unreachable server for minutes.
IMPATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "4", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "30", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
KILLED_IF_UNFINISHED = "--killed-if-unfinished"
READY, DONE = b"ready\n", b"done\n"


@dataclass(frozen=True)
class CellFiles:
    """Where a cell's files stand; `outputs` holds all of them, once it is finished."""

    record: Path
    folder: Path
    outputs: Path | None


def in_scratch(folder: Path) -> CellFiles | None:
    scratch = Scratch(folder)
    if (scratch.finished / SEAL).exists():
        return CellFiles(scratch.finished / RECORD_FILE, scratch.finished / "run", scratch.finished / "run")
    return CellFiles(scratch.record, folder, None) if scratch.record.exists() else None


class Upload:
    """One cell on its way to MLflow; `advance` sends what is new and may be repeated after any failure."""

    def __init__(self, store: Store, find: Callable[[], CellFiles | None], answer: Path | None = None) -> None:
        self.store, self.find, self.answer = store, find, answer
        self.run_id: str | None = None
        self.present: frozenset[tuple[str, int]] = frozenset()
        self.rows = 0  # of the history that were sent
        self.done = False

    def advance(self) -> bool:
        """Whether something of a finished cell was sent, now that all of it is."""
        files = self.find()
        if files is None or self.done:
            return False
        record = read_json(files.record)
        if self.run_id is None:
            config = read_yaml(files.folder / "config.yaml") | {"profile": record["profile"]}
            opened = self.store.open_run(record, config)
            self.run_id, self.present, self.done = opened.run_id, opened.present, opened.complete
            self.tell()
            if self.done:
                return False
        entries = list(history(record, files.folder / "history.csv"))
        self.store.log_metrics(self.run_id, (without(entry, self.present) for entry in entries[self.rows :]))
        self.rows = max(self.rows, len(entries))
        if files.outputs is not None:
            self.store.finish_run(self.run_id, record, files.outputs)
            self.done = True
            self.tell()
        return self.done

    def tell(self) -> None:
        if self.answer is not None:
            write_json(self.answer, {"run_id": self.run_id, "logged": self.done})

    def give_up(self) -> None:
        if self.run_id is not None and not self.done:
            self.store.mark_killed(self.run_id)


def history(record: Mapping[str, object], file: Path) -> Iterator[Json]:
    """The rows of history.csv as metric entries; those of a finished run spread evenly over the time that it took."""
    if not file.exists():
        return
    with file.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    begin = end = milliseconds(now())
    if "finished" in record:
        begin, end = milliseconds(str(record["started"])), milliseconds(str(record["finished"]))
    steps = [int(row.pop("iteration")) for row in rows]
    for step, row in zip(steps, rows, strict=True):
        moment = begin + round(step / steps[-1] * (end - begin))
        yield {"step": step, "timestamp": moment, "metrics": numbers(row)}


def without(entry: Json, present: frozenset[tuple[str, int]]) -> Json:
    missing = {name: value for name, value in entry["metrics"].items() if (name, entry["step"]) not in present}
    return entry | {"metrics": missing}


def backfill(root: Path) -> tuple[int, int]:
    """Upload what the store lacks of the finished cells under `root`; the numbers of uploaded and of complete runs.

    run.json is left as it is, although it may say `logged: false`: it is an output that DVC tracks, and a changed
    output would make DVC run the cell again. Whether a run is complete is asked of the store itself, by the uid.
    """
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    records = sorted((root / "tracking").rglob(RECORD_FILE))
    ensure_store()
    from safeecgmatch.tracking.store import MlflowException, Store

    uploaded = 0
    # Two backfills at once would both miss, and both create, the same run.
    with lock(project_root() / ARTIFACTS / ".backfill.lock"), Progress(len(records), "backfill", "runs") as bar:
        store = Store()
        for file in records:
            path = file.parent.relative_to(root / "tracking").as_posix()
            folder = root / "runs" / path
            if not folder.is_dir():
                raise UserError(f"{folder} is missing although {file} exists; `dvc checkout` brings it back.")
            files = CellFiles(file, folder, folder)
            try:
                uploaded += Upload(store, lambda files=files: files).advance()  # type: ignore[misc]
            except MlflowException as error:
                raise UserError(f"The MLflow store {tracking_uri()} did not take {path}: {describe(error)}") from None
            bar.advance(1, note=path)
    return uploaded, len(records) - uploaded


def describe(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


class Follower:
    """Sends all cells that it was told of, again and again, until their ends."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.uploads: list[Upload] = []
        self.not_before = 0.0

    def add(self, folder: Path) -> None:
        self.uploads.append(Upload(self.store, lambda: in_scratch(folder), Scratch(folder).mlflow))

    def look(self) -> bool:
        """One round over all cells; False after trouble, which is told and pauses all of them."""
        if time.monotonic() < self.not_before:
            return False
        for upload in list(self.uploads):
            try:
                upload.advance()
            except Exception as error:  # no fault on this side may reach the training; each is told
                print(f"MLflow: {type(error).__name__}: {describe(error)}", file=sys.stderr, flush=True)
                if not isinstance(error, OSError | self.store.Trouble):
                    traceback.print_exc()
                self.not_before = time.monotonic() + SECONDS_AFTER_TROUBLE
                upload.run_id = None  # opened again, it asks what arrived although the answer was lost
                self.uploads.remove(upload)
                self.uploads.append(upload)
                return False
            if upload.done:
                self.uploads.remove(upload)
        return True

    def end(self, killed_if_unfinished: bool) -> bool:
        """The last round; True if the store has all that there is."""
        self.not_before = 0.0
        complete = self.look()
        if complete and killed_if_unfinished:
            for upload in self.uploads:
                upload.give_up()
        return complete


class Following:
    """The following process, seen from the one that trains or launches."""

    def __init__(self, killed_if_unfinished: bool = True) -> None:
        flags = [KILLED_IF_UNFINISHED] if killed_if_unfinished else []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "safeecgmatch.tracking.uploader", *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment() | IMPATIENCE,
            start_new_session=True,  # a Ctrl-C is for the training, which then ends this in order
        )
        self.heard = b""

    def __enter__(self) -> Following:
        return self

    def follow(self, folder: Path) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died and said why; `__exit__` tells what follows from it
            self.process.stdin.write(f"{folder}\n".encode())
            self.process.stdin.flush()

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        seconds = SECONDS_FOR_THE_SERVER if is_remote(tracking_uri()) else SECONDS_FOR_THIS_MACHINE
        try:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
            complete = self._hears(READY, SECONDS_FOR_THIS_MACHINE) and self._hears(DONE, seconds)
        finally:
            self.process.kill()
            self.process.wait()
        if not complete:
            print(
                "MLflow did not take everything; the files are complete, and `safeecgmatch mlflow backfill` uploads "
                "what is missing.",
                file=sys.stderr,
            )

    def _hears(self, word: bytes, seconds: float) -> bool:
        assert self.process.stdout is not None
        deadline = time.monotonic() + seconds
        while word not in self.heard:
            readable, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                return False
            said = os.read(self.process.stdout.fileno(), 4096)
            if not said:  # it is ending, and may have a last word to say
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(max(0.0, deadline - time.monotonic()))
                return False
            self.heard += said
        return True


def new_lines(stream: int, buffer: bytearray) -> list[str] | None:
    """The complete lines that arrive within a moment; None at the stream's end."""
    if select.select([stream], [], [], SECONDS_BETWEEN_LOOKS)[0]:
        said = os.read(stream, 65536)
        if not said:
            return None
        buffer += said
    *lines, rest = buffer.decode().split("\n")
    buffer[:] = rest.encode()
    return lines


def main() -> None:
    # mlflow prints links to runs; they must not get between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    ensure_store()
    from safeecgmatch.tracking.store import Store

    follower, buffer = Follower(Store()), bytearray()
    answers.write(READY)
    while (lines := new_lines(sys.stdin.fileno(), buffer)) is not None:
        for line in lines:
            follower.add(Path(line))
        follower.look()
    if follower.end(KILLED_IF_UNFINISHED in sys.argv):
        with contextlib.suppress(BrokenPipeError):  # whoever trained has gone
            answers.write(DONE)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"MLflow: {error}")
