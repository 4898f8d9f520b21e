"""A warm process that has imported torch and our code, and forks a child for every cell: 0.1 instead of 2.5 seconds.

Started by `local.py` in a snapshot. Standard input: one JSON line per cell to start; its end means stop. Standard
output: `{"ready": true}`, then `{"path": ..., "status": ...}` for every child that ended (minus a signal's number).
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from safeecgmatch.config import load_params
from safeecgmatch.engine.fingerprint import method_module, method_of
from safeecgmatch.launching.cell import train_job

SECONDS_TO_CHECKPOINT = 60.0


def warm_up() -> None:
    """Import all that cells import, but start no thread and touch no GPU: a fork would not survive either."""
    params = load_params()
    for name in params.methods:
        importlib.import_module(method_module(method_of(params, name)["module"]))
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.Adam([parameter], fused=True).step()  # imports torch's compiler, whether it is used or not


def child(order: dict[str, Any]) -> None:
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    if order["gpu"]:
        os.environ["CUDA_VISIBLE_DEVICES"] = order["gpu"]
    sys.exit(train_job(order["path"], Path(order["folder"]), Path(order["data"]), order["uid"]))


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    warm_up()
    fork = multiprocessing.get_context("fork")
    children: dict[str, BaseProcess] = {}
    say(ready=True)
    orders, buffer, stop_at = [sys.stdin.fileno()], b"", float("inf")
    while orders or children:
        patience = None if orders else max(0.0, stop_at - time.monotonic())
        ready = wait([*orders, *(process.sentinel for process in children.values())], patience)
        if orders and orders[0] in ready:
            said = os.read(orders[0], 65536)
            *lines, buffer = (buffer + said).split(b"\n")
            for order in map(json.loads, lines):
                children[order["path"]] = fork.Process(target=child, args=[order])
                children[order["path"]].start()
            if not said:  # the launcher stops, or has gone
                orders, stop_at = [], time.monotonic() + SECONDS_TO_CHECKPOINT
                for process in children.values():
                    os.kill(process.pid or 0, signal.SIGTERM)
        for path, process in list(children.items()):
            if process.exitcode is not None:
                del children[path]
                say(path=path, status=process.exitcode)
            elif time.monotonic() > stop_at:
                process.kill()


if __name__ == "__main__":
    main()
