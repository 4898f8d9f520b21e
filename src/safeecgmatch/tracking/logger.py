"""The training's side of tracking: hand messages to the recorder process, never wait for it but in `finish`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import IO, Any

from safeecgmatch.errors import UserError
from safeecgmatch.files import digest_of
from safeecgmatch.tracking.address import child_environment
from safeecgmatch.tracking.record import Json, milliseconds, now, numbers

SECONDS_FOR_THE_SERVER = 10.0  # in total over a cell
SECONDS_FOR_THE_IMPORT = 120.0  # of mlflow, and for making a fresh local store, on a machine however busy
# An MLflow client left to itself retries an unreachable server for minutes.
IMPATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "4", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
RECORDER = [sys.executable, "-m", "safeecgmatch.tracking.recorder"]
SHARED_RECORDER = "SAFEECGMATCH_RECORDER"  # environment variable: the socket of a recorder for many cells


@dataclass(frozen=True)
class RunResult:
    run_id: str | None  # as far as known
    logged: bool  # True: MLflow has everything; else `safeecgmatch mlflow backfill` will complete it
    record: Json  # the content for tracking/<cell>/run.json


class Logger:
    """One cell's line to MLflow. Messages pass through a thread, for writing to a full pipe would block."""

    def __init__(self) -> None:
        self.run_id: str | None = None
        self._record: Json = {}
        self._trouble = ""
        self._logged = False
        self._ready, self._answered = Event(), Event()
        self._outbox: SimpleQueue[Json | None] = SimpleQueue()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process that writes to it
        writer, reader, self._hang_up = _shared_recorder() or _own_recorder(self._errors)
        Thread(target=self._send, args=[writer], daemon=True).start()
        Thread(target=self._receive, args=[reader], daemon=True).start()

    @property
    def uid(self) -> str:
        """What a checkpoint keeps, so that the resumed cell continues this very run."""
        return self._record["uid"]

    def open(self, record: Json, config: Mapping[str, Any]) -> None:
        self._record = dict(record)
        self._outbox.put({"open": {"record": record, "config": config}})

    def evaluation(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        """Queue the metrics of one evaluation, a row of history.csv; undefined ones (None, NaN) are left out."""
        defined = numbers({name: value for name, value in metrics.items() if name != "iteration"})
        entry = {"step": iteration, "timestamp": milliseconds(now()), "metrics": defined}
        self._outbox.put({"evaluation": entry})

    def finish(
        self, folder: Path, metrics: Mapping[str, Any], *, wall_seconds: float, iterations_per_second: float
    ) -> RunResult:
        """Hand over the final test metrics and the folder with the cell's files; wait, but only within the budget."""
        record = self._record | {
            "finished": now(),
            "wall_seconds": wall_seconds,
            "iterations_per_second": iterations_per_second,
            "metrics": numbers(metrics),
            "weights_md5": digest_of(folder / "model.safetensors", "md5"),
        }
        self._outbox.put({"finish": {"record": record, "folder": str(folder.absolute())}})
        if self._ready.wait(SECONDS_FOR_THE_IMPORT):
            self._answered.wait(SECONDS_FOR_THE_SERVER)
        self._outbox.put(None)
        self._hang_up()
        if not self._logged:
            print(
                f"MLflow did not take the run of {record['path']} ({self._reason()}); its files are complete, "
                "and `safeecgmatch mlflow backfill` uploads it later.",
                file=sys.stderr,
            )
        return RunResult(self.run_id, self._logged, record | {"run_id": self.run_id, "logged": self._logged})

    def interrupt(self) -> None:
        """The training stops before its end: the run is marked killed, until a resumed cell continues it."""
        self._outbox.put(None)

    def _reason(self) -> str:
        self._errors.seek(0)
        last_words = self._errors.read().decode(errors="replace").strip().splitlines()
        return self._trouble or (last_words[-1] if last_words else "no answer in time")

    def _send(self, writer: IO[bytes]) -> None:
        try:
            with writer:
                while (message := self._outbox.get()) is not None:
                    writer.write(json.dumps(message).encode() + b"\n")
                    writer.flush()
        except OSError as error:  # the other end has gone
            self._trouble = self._trouble or str(error)

    def _receive(self, reader: IO[bytes]) -> None:
        for line in reader:
            said = json.loads(line)
            self.run_id = said.get("run_id", self.run_id)
            self._trouble = said.get("trouble", self._trouble)
            if said.get("ready"):
                self._ready.set()
            if "logged" in said:
                self._logged = said["logged"]
                break
        # Also when the other end died: nobody shall wait for it any longer.
        self._ready.set()
        self._answered.set()


Line = tuple[IO[bytes], IO[bytes], Callable[[], None]]


def _own_recorder(errors: IO[bytes]) -> Line:
    process = subprocess.Popen(
        RECORDER,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=child_environment() | IMPATIENCE,
    )
    assert process.stdin is not None and process.stdout is not None

    def hang_up() -> None:
        process.kill()
        process.wait()

    return process.stdin, process.stdout, hang_up


def _shared_recorder() -> Line | None:
    address = os.environ.get(SHARED_RECORDER)
    if not address:
        return None
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address)
    except OSError:  # its launcher has ended; a recorder of one's own serves as well
        return None
    return connection.makefile("wb"), connection.makefile("rb"), lambda: connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def shared_recorder() -> Iterator[dict[str, str]]:
    """A recorder for many cells; yields the environment that makes them use it."""
    with tempfile.TemporaryDirectory(prefix="recorder-") as folder, tempfile.TemporaryFile() as errors:
        address = str(Path(folder, "socket"))
        process = subprocess.Popen(
            [*RECORDER, "--serve", address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=child_environment() | IMPATIENCE,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            if process.stdout.readline() != b"ready\n":
                errors.seek(0)
                reason = errors.read().decode(errors="replace").strip().splitlines()[-1:]
                raise UserError(f"The MLflow recorder did not start: {' '.join(reason) or 'no message'}.")
            yield {SHARED_RECORDER: address}
        finally:
            process.kill()
            process.wait()


_warm: list[Logger] = []


def warm_up() -> None:
    """Start the recorder process now, so that it imports mlflow while this one imports torch."""
    if not _warm:
        _warm.append(Logger())


def start(record: Json, config: Mapping[str, Any]) -> Logger:
    """The logger of the run that `record` (see `run_record`) describes; returns at once."""
    logger = _warm.pop() if _warm else Logger()
    logger.open(record, config)
    return logger
