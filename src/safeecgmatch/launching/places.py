"""Places to train: a launcher gives out so many, and a cell holds one while it trains.

So the launcher can start one cell more than may train, and DVC's bookkeeping for that one, which takes seconds and the
repository's lock, overlaps with the training of the others.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PLACES = "SAFEECGMATCH_PLACES"  # environment variable: a folder, each file of which is a place
SECONDS_BETWEEN_LOOKS = 0.1


@contextmanager
def places(count: int) -> Iterator[dict[str, str]]:
    """Yields the environment that makes cells take turns."""
    with tempfile.TemporaryDirectory(prefix="places-") as folder:
        for number in range(count):
            Path(folder, str(number)).touch()
        yield {PLACES: folder}


@contextmanager
def place() -> Iterator[None]:
    """Wait for a free place and hold it; without a launcher, go on at once. A dead process holds nothing."""
    held = _take(Path(os.environ[PLACES])) if os.environ.get(PLACES) else None
    try:
        yield
    finally:
        if held is not None:
            held.close()


def _take(folder: Path) -> IO[bytes] | None:
    while files := sorted(folder.glob("*")):  # none: the launcher has ended
        for file in files:
            stream = file.open("rb")
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return stream
            except BlockingIOError:
                stream.close()
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return None
