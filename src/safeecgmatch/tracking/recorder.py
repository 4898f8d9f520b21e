"""The process that speaks to MLflow: JSON lines in, JSON lines out. See `logger.py` for the other end.

By default a cell starts its own. `--serve SOCKET` serves any number of cells from one process, which saves each of them
the import of mlflow: the launcher of many cells uses that. Input that ends without `finish` means that the training
was interrupted.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socketserver
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

from safeecgmatch.tracking.address import ensure_store, sqlite_file, tracking_uri

SECONDS_BETWEEN_ATTEMPTS = 30.0
SECONDS_AFTER_AN_INTERRUPTION = 10


class Recorder:
    """Records one run; keeps what could not be sent yet, and takes every message as another chance to send it."""

    def __init__(self, answers: TextIO) -> None:
        self.answers = answers
        self.store: Any = None
        self.run_id: str | None = None
        self.opened: dict[str, Any] = {}
        self.pending: list[dict[str, Any]] = []
        self.not_before = 0.0

    def serve(self, lines: Iterable[str]) -> bool:
        """Handle messages up to `finish`; False if they end before it."""
        self.say(ready=True)
        for line in lines:
            [(kind, content)] = json.loads(line).items()
            {"open": self.open, "evaluation": self.evaluation, "finish": self.finish}[kind](content)
            if kind == "finish":
                return True
        return False

    def say(self, **message: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # the training has gone; the run is completed all the same
            print(json.dumps(message), file=self.answers, flush=True)

    def open(self, opened: dict[str, Any]) -> None:
        self.opened = opened
        self.attempt(self.connect)

    def connect(self) -> None:
        from safeecgmatch.tracking.store import Store

        if self.run_id is None:
            self.store = self.store or Store()
            self.run_id = self.store.open_run(self.opened["record"], self.opened["config"])
            self.say(run_id=self.run_id)

    def flush(self) -> None:
        self.connect()
        while self.pending:
            self.store.log_metrics(self.run_id, self.pending[:1])
            del self.pending[0]

    def evaluation(self, entry: dict[str, Any]) -> None:
        self.pending.append(entry)
        self.attempt(self.flush)

    def finish(self, finish: dict[str, Any]) -> None:
        def complete() -> None:
            self.flush()
            self.store.finish_run(self.run_id, finish["record"], Path(finish["folder"]))

        self.not_before = 0.0
        self.say(logged=self.attempt(complete))

    def interrupted(self) -> None:
        def mark() -> None:
            self.flush()
            self.store.mark_killed(self.run_id)

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
            self.say(trouble=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
            return False
        return True


class Connection(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        with os.fdopen(os.dup(self.request.fileno()), "w", encoding="utf-8") as answers:
            recorder = Recorder(answers)
            if not recorder.serve(line.decode() for line in self.rfile):
                recorder.interrupted()


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True  # a call that hangs must not keep the process alive
    request_queue_size = 128


def import_mlflow() -> None:
    """All that takes seconds and waits for no server: making, importing and opening a local store."""
    ensure_store()
    from safeecgmatch.tracking.store import Store

    if sqlite_file(tracking_uri()) is not None:
        Store().open()


def main(arguments: list[str]) -> None:
    # The training decides when to stop; a Ctrl-C reaches this process too and must not cut the run off.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # mlflow prints links to runs; they must not get between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    import_mlflow()
    if arguments:
        with Server(arguments[-1], Connection) as server:
            print("ready", file=answers, flush=True)
            server.serve_forever()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    recorder = Recorder(answers)
    if not recorder.serve(sys.stdin):
        signal.alarm(SECONDS_AFTER_AN_INTERRUPTION)
        recorder.interrupted()
    os._exit(0)  # tearing mlflow down takes longer than all the rest of this line


if __name__ == "__main__":
    main(sys.argv[1:])
