"""The training's side of tracking: hand messages to the recorder process, never wait for it but in `finish`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

from safeecgmatch.files import digest_of
from safeecgmatch.tracking.address import quiet_environment
from safeecgmatch.tracking.record import Json, milliseconds, now, numbers

SECONDS_FOR_THE_SERVER = 10.0  # in total over a cell
SECONDS_FOR_THE_IMPORT = 120.0  # of mlflow, and for making a fresh local store, on a machine however busy
# An MLflow client left to itself retries an unreachable server for minutes.
IMPATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "4", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}


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
        self._process = subprocess.Popen(
            [sys.executable, "-m", "safeecgmatch.tracking.recorder"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=quiet_environment() | IMPATIENCE,
        )
        Thread(target=self._send, daemon=True).start()
        Thread(target=self._receive, daemon=True).start()

    @property
    def uid(self) -> str:
        """What a checkpoint keeps, so that the resumed cell continues this very run."""
        return self._record["uid"]

    def open(self, record: Json, config: Mapping[str, Any]) -> None:
        self._record = dict(record)
        self._outbox.put({"open": {"record": record, "config": config}})

    def evaluation(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        """Queue the metrics of one evaluation; undefined ones (None, NaN) are left out."""
        entry = {"step": iteration, "timestamp": milliseconds(now()), "metrics": numbers(metrics)}
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
        self._outbox.put(None)
        if self._ready.wait(SECONDS_FOR_THE_IMPORT):
            self._answered.wait(SECONDS_FOR_THE_SERVER)
        self._process.kill()
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

    def _send(self) -> None:
        assert self._process.stdin is not None
        try:
            with self._process.stdin as pipe:
                while (message := self._outbox.get()) is not None:
                    pipe.write(json.dumps(message).encode() + b"\n")
                    pipe.flush()
        except BrokenPipeError:
            self._trouble = self._trouble or "the recorder process ended early"

    def _receive(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            self.run_id = said.get("run_id", self.run_id)
            self._trouble = said.get("trouble", self._trouble)
            if said.get("ready"):
                self._ready.set()
            if "logged" in said:
                self._logged = said["logged"]
                break
        # Also when the process died: nobody shall wait for it any longer.
        self._ready.set()
        self._answered.set()


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
