"""The process that speaks to MLflow for one cell: JSON lines in, JSON lines out. See `logger.py` for the other end.

It ends when its input ends. Input that ends without `finish` means that the training was interrupted.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safeecgmatch.tracking.address import ensure_store

SECONDS_BETWEEN_ATTEMPTS = 30.0
SECONDS_AFTER_AN_INTERRUPTION = 10


def say(**message: Any) -> None:
    with contextlib.suppress(BrokenPipeError):  # the training has gone; the run is completed all the same
        print(json.dumps(message), flush=True)


class Recorder:
    """Keeps what could not be sent yet; every message is another chance to send it."""

    def __init__(self) -> None:
        from safeecgmatch.tracking.store import Store

        self._open_store = Store
        self.store: Store | None = None
        self.run_id: str | None = None
        self.opened: dict[str, Any] = {}
        self.pending: list[dict[str, Any]] = []
        self.not_before = 0.0

    def open(self, opened: dict[str, Any]) -> None:
        self.opened = opened
        self.attempt(self.connect)

    def connect(self) -> None:
        if self.run_id is None:
            self.store = self.store or self._open_store()
            self.run_id = self.store.open_run(self.opened["record"], self.opened["config"])
            say(run_id=self.run_id)

    def flush(self) -> None:
        self.connect()
        assert self.store is not None and self.run_id is not None
        while self.pending:
            self.store.log_metrics(self.run_id, self.pending[:1])
            del self.pending[0]

    def evaluation(self, entry: dict[str, Any]) -> None:
        self.pending.append(entry)
        self.attempt(self.flush)

    def finish(self, finish: dict[str, Any]) -> None:
        def complete() -> None:
            self.flush()
            assert self.store is not None and self.run_id is not None
            self.store.finish_run(self.run_id, finish["record"], Path(finish["folder"]))

        self.not_before = 0.0
        say(logged=self.attempt(complete))

    def interrupted(self) -> None:
        def mark() -> None:
            self.flush()
            assert self.store is not None and self.run_id is not None
            self.store.mark_killed(self.run_id)

        signal.alarm(SECONDS_AFTER_AN_INTERRUPTION)
        if self.opened:
            self.attempt(mark)

    def attempt(self, action: Callable[[], None]) -> bool:
        if time.monotonic() < self.not_before:
            return False
        try:
            action()
        except Exception as error:
            # Whatever goes wrong between here and the server must not reach the training.
            self.not_before = time.monotonic() + SECONDS_BETWEEN_ATTEMPTS
            say(trouble=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
            return False
        return True


def main() -> None:
    # The training decides when to stop; a Ctrl-C reaches this process too and must not cut the run off.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ensure_store()
    recorder = Recorder()
    say(ready=True)
    for line in sys.stdin:
        [(kind, content)] = json.loads(line).items()
        {"open": recorder.open, "evaluation": recorder.evaluation, "finish": recorder.finish}[kind](content)
        if kind == "finish":
            break
    else:
        recorder.interrupted()
    os._exit(0)  # tearing mlflow down takes longer than all the rest of this line


if __name__ == "__main__":
    main()
