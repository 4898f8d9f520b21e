"""DVC by its command line: what is out of date, and one `dvc repro` that runs or takes over what is asked for.

DVC writes dvc.lock and its list of busy files in place, so a kill can leave half of either. A copy of dvc.lock is kept
in scratch/ while `dvc repro` runs; after a kill the copy is put back, and DVC records the same cells once more.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import psutil

from safeecgmatch.errors import UserError
from safeecgmatch.files import write_text
from safeecgmatch.launching.adoption import TAKE_OVER_ONLY
from safeecgmatch.launching.scratch import scratch_root

LOCK = Path("dvc.lock")
BUSY_FILES = Path(".dvc/tmp/rwlock")
SECONDS_BETWEEN_LOOKS = 1.0
LONGEST_ERROR = 10_000  # of DVC's last words
# `python -m dvc` with fewer searches for garbage, which take an eighth of its time.
PROGRAM = "import gc, runpy; gc.set_threshold(200_000); runpy.run_module('dvc', run_name='__main__', alter_sys=True)"


class StagesFailed(UserError):
    """DVC ran to its end, but not all stages did."""


def stale_stages() -> set[str]:
    """The names of all stages that are out of date. Changes nothing."""
    answer, _ = ask("status", "--json")
    return set(json.loads(answer))


def reproduce(stages: Sequence[str], anew: Collection[str] = ()) -> None:
    """`dvc repro` of these stages and of all that they need; the good ones are recorded, a bad one is an error.

    `anew`: those that are out of date and will be recorded anew. What dvc.lock says of them is forgotten first, because
    DVC reads and writes all of that file for every stage that it runs.
    """
    if not stages:
        return  # DVC would run everything
    kept = kept_lock()
    recorded = LOCK.read_text(encoding="utf-8") if LOCK.exists() else ""
    write_text(kept, recorded)
    with kept.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # DVC inherits it, and may go on where this process is killed
        try:
            if recorded:
                write_text(LOCK, without(recorded, anew))
            _, status = ask("repro", "--keep-going", *stages, held=held.fileno())
        except BaseException:
            put_back(kept)
            raise
    if status < 0:
        put_back(kept)
        raise UserError(f"DVC was killed by signal {-status}; nothing is lost, run the same command again.")
    kept.unlink()
    if status > 0:
        raise StagesFailed("DVC did not run all stages; its messages are above.")


def recover() -> None:
    """After a kill during `reproduce`: wait for what is still at work, then put dvc.lock back."""
    kept = kept_lock()
    if not kept.exists():
        return
    with kept.open() as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("DVC is still at work for a `safeecgmatch run` that was killed; waiting for it.", file=sys.stderr)
            fcntl.flock(held, fcntl.LOCK_EX)
    put_back(kept)
    print("The last run was killed while DVC was at work: dvc.lock is as it was before, and is written again.")


def without(recorded: str, stages: Collection[str]) -> str:
    """The text of dvc.lock without these stages; the name of a stage is what is indented by two spaces alone."""
    head, *entries = re.split(r"^(?=  \S)", recorded, flags=re.MULTILINE)
    return head + "".join(entry for entry in entries if entry.partition(":")[0].strip() not in stages)


def kept_lock() -> Path:
    return scratch_root() / LOCK.name


def put_back(kept: Path) -> None:
    text = kept.read_text(encoding="utf-8")
    if text:
        write_text(LOCK, text)
    else:
        LOCK.unlink(missing_ok=True)
    kept.unlink()


def ask(*arguments: str, held: int | None = None) -> tuple[str, int]:
    """What a DVC command prints, and its exit status; waits for other DVC processes instead of giving up.

    `held`: the command writes; it inherits this file, its output goes to the terminal, and its failure is the caller's.
    """
    while True:
        output, errors, status = talk(arguments, held)
        if status != 0 and "Unable to read RWLock-file" in errors:
            BUSY_FILES.unlink(missing_ok=True)
        elif status != 0 and "is busy, it is being blocked by" in errors:
            wait_for({int(number) for number in re.findall(r"\(PID (\d+)\)", errors)})
        elif status == 0 or held is not None:
            return output, status
        else:
            raise UserError(f"`dvc {arguments[0]}` failed: {' '.join(errors.split())}")


def talk(arguments: Sequence[str], held: int | None) -> tuple[str, str, int]:
    """Output, errors and status of one DVC process. An interrupt ends it and all that it started."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "--wait-for-lock", *arguments],
        stdout=subprocess.PIPE if held is None else None,
        stderr=subprocess.PIPE,
        env=environment(),
        start_new_session=True,
        pass_fds=[] if held is None else [held],
    )
    try:
        if held is None:
            output, errors = process.communicate()
            return output.decode(), errors.decode(errors="replace"), process.returncode
        assert process.stderr is not None
        last = b""
        while said := os.read(process.stderr.fileno(), 65536):
            sys.stderr.write(said.decode(errors="replace"))
            sys.stderr.flush()
            last = (last + said)[-LONGEST_ERROR:]
        return "", last.decode(errors="replace"), process.wait()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        raise


def environment() -> dict[str, str]:
    """Stages say `python`; that must be the one that runs this, also where its environment is not activated."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, "PATH": path, TAKE_OVER_ONLY: "1"}


def wait_for(numbers: Collection[int]) -> None:
    """Until these processes, which block DVC, have ended.

    DVC knows them by their numbers, and after a restart of the machine a number can be another program's: then its list
    of busy files is removed, as its own message says.
    """
    alive = [number for number in numbers if is_dvc(number)]
    if not alive:
        BUSY_FILES.unlink(missing_ok=True)
        return
    print(
        f"Another DVC process ({', '.join(map(str, alive))}) is at work; waiting for it.", file=sys.stderr, flush=True
    )
    while any(map(is_dvc, alive)):
        time.sleep(SECONDS_BETWEEN_LOOKS)


def is_dvc(number: int) -> bool:
    try:
        return any("dvc" in word for word in psutil.Process(number).cmdline())
    except psutil.Error:
        return False
