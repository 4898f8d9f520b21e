"""The one path to MLflow: follow a cell's files, the history while it grows, then the rest.

    with Following() as uploader:            # a thread, which shares the processor with a training for moments only
        uploader.follow(scratch)             # now or at any time
        ...                                  # train; leaving waits for the rest, 10 seconds for a server at most

`backfill` sends finished cells from runs/ and tracking/ the same way. The thread only reads the files of cells:
whatever happens to it or to MLflow, they are the same.
"""

from __future__ import annotations

import csv
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Protocol

from safeecgmatch.config import load_params
from safeecgmatch.errors import UserError
from safeecgmatch.files import project_root, read_json, read_yaml
from safeecgmatch.progress import Progress
from safeecgmatch.startup import quick_imports
from safeecgmatch.tracking.address import ARTIFACTS, brief, ensure_store, is_remote, lock, patience, tracking_uri
from safeecgmatch.tracking.record import RECORD_FILE, CellFiles, Json, metric_name, milliseconds, now, numbers

if TYPE_CHECKING:
    from safeecgmatch.tracking.store import Store

SECONDS_FOR_THE_SERVER = 10.0  # to wait for it, in total
SECONDS_FOR_THIS_MACHINE = 300.0  # to import mlflow and to write to a local store, however busy it is
SECONDS_BETWEEN_LOOKS = 2.0
SECONDS_AFTER_TROUBLE = 30.0


class Followed(Protocol):
    """Where a cell is being written."""

    def files(self) -> CellFiles | None:
        """None before there is anything to upload."""

    def uploaded(self, run_id: str, logged: bool) -> None:
        """Told at the end: the run's id, and whether MLflow has everything."""


class Upload:
    """One cell on its way to MLflow; `advance` sends what is new and may be repeated after any failure."""

    def __init__(self, source: Followed) -> None:
        self.source = source
        self.run_id: str | None = None
        self.opened = False
        self.present: frozenset[tuple[str, int]] = frozenset()
        self.rows = 0  # of the history that were sent
        self.done = False

    def advance(self, store: Store) -> bool:
        """Whether something of a finished cell was sent, now that all of it is."""
        if self.done or (files := self.source.files()) is None:
            return False
        record = read_json(files.record)
        if not self.opened:
            run = store.open_run(record, read_yaml(files.folder / "config.yaml"))
            self.run_id, self.present, self.done, self.opened = run.run_id, run.present, run.complete, True
            if self.done:
                return False
        assert self.run_id is not None
        entries = list(history(record, files.folder / "history.csv"))
        store.log_metrics(self.run_id, entries[self.rows :], self.present)
        self.rows = max(self.rows, len(entries))
        if files.finished:
            store.finish_run(self.run_id, record, files.folder)
            self.done = True
        return self.done

    def give_up(self, store: Store) -> None:
        if self.run_id is not None and not self.done:
            store.mark_killed(self.run_id)


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
        metrics = {metric_name(column): value for column, value in numbers(row).items()}
        yield {"step": step, "timestamp": moment, "metrics": metrics}


def tell(error: Exception, expected: tuple[type[Exception], ...]) -> None:
    """One line about trouble with MLflow, with its place in the code where it is a fault of ours."""
    text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {brief(error)}"
    print(f"MLflow: {text}", file=sys.stderr, flush=True)
    if not isinstance(error, (UserError, *expected)):
        traceback.print_exception(error)


class Following:
    """A daemon thread that sends all cells that it was told of, again and again, until their ends.

    A server that hangs holds up that thread alone, and ends with the process.
    """

    def __init__(self, killed_if_unfinished: bool = True) -> None:
        self.killed_if_unfinished = killed_if_unfinished
        self.uploads: list[Upload] = []
        self.not_before = 0.0  # after trouble
        self.ready, self.ended, self.complete = Event(), Event(), False
        self.thread = Thread(target=self._run, name="mlflow", daemon=True)

    def __enter__(self) -> Following:
        patience(seconds=4, retries=1)
        self.thread.start()
        return self

    def follow(self, source: Followed) -> None:
        self.uploads.append(Upload(source))

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.ready.wait(SECONDS_FOR_THIS_MACHINE)
        self.thread.join(SECONDS_FOR_THE_SERVER if is_remote(tracking_uri()) else SECONDS_FOR_THIS_MACHINE)
        for upload in self.uploads:
            if upload.run_id is not None:
                upload.source.uploaded(upload.run_id, upload.done)
        if not self.complete:
            print(
                "MLflow did not take everything; the files are complete, and `safeecgmatch mlflow backfill` uploads "
                "what is missing.",
                file=sys.stderr,
            )

    def _run(self) -> None:
        try:
            ensure_store()
            with quick_imports():
                from safeecgmatch.tracking.store import Store

                store = Store()
        except Exception as error:
            return tell(error, expected=(OSError,))
        finally:
            self.ready.set()
        while not self.ended.wait(SECONDS_BETWEEN_LOOKS):
            self.look(store)
        self.not_before = 0.0
        self.complete = self.look(store)
        if self.complete and self.killed_if_unfinished:
            for upload in self.uploads:
                upload.give_up(store)

    def look(self, store: Store) -> bool:
        """One round over all cells; False after trouble, which is told and pauses all of them."""
        if time.monotonic() < self.not_before:
            return False
        for upload in list(self.uploads):
            try:
                upload.advance(store)
            except Exception as error:  # no fault on this side may reach the training; each is told
                tell(error, expected=(OSError, store.Trouble))
                self.not_before = time.monotonic() + SECONDS_AFTER_TROUBLE
                upload.opened = False  # opened again, it asks what arrived although the answer was lost
                self.uploads.remove(upload)  # the others come first the next time
                self.uploads.append(upload)
                return False
        return True


class Stored:
    """A finished cell in runs/ and tracking/.

    run.json stays as it is, although it may say `logged: false`: DVC tracks it, and would run the cell again if it
    changed. Whether a run is complete is asked of the store itself, by the uid.
    """

    def __init__(self, root: Path, record: Path) -> None:
        self.record = record
        self.path = record.parent.relative_to(root / "tracking").as_posix()
        self.folder = root / "runs" / self.path

    def files(self) -> CellFiles:
        if not self.folder.is_dir():
            raise UserError(f"{self.folder} is missing although {self.record} exists; `dvc checkout` brings it back.")
        return CellFiles(self.record, self.folder, finished=True)

    def uploaded(self, run_id: str, logged: bool) -> None: ...


def backfill(root: Path) -> tuple[int, int]:
    """Upload what the store lacks of the finished cells under `root`; the numbers of uploaded and of complete runs."""
    load_params(root / "params.yaml")  # outside a project no store comes to be
    from safeecgmatch.tracking.store import Store

    patience(seconds=30, retries=2)
    uploaded = 0
    cells = [Stored(root, file) for file in sorted((root / "tracking").rglob(RECORD_FILE))]
    ensure_store()
    # Two backfills at once would both miss, and both create, the same run.
    with lock(project_root() / ARTIFACTS / ".backfill.lock"), Progress(len(cells), "backfill", "runs") as bar:
        store = Store()
        for cell in cells:
            try:
                uploaded += Upload(cell).advance(store)
            except (ValueError, KeyError) as error:
                where = f"{cell.record} or a file in {cell.folder}"
                raise UserError(f"{where} is damaged ({brief(error)}); `dvc checkout` brings it back.") from error
            bar.advance(1, note=cell.path)
    return uploaded, len(cells) - uploaded
