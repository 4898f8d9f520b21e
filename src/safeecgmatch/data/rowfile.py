"""The file of a store's rows in the making: allocated at its final size, hashed as it grows, closed up at the end."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from safeecgmatch.errors import UserError
from safeecgmatch.leads import LEADS


def row_bytes(samples: int) -> int:
    return len(LEADS) * samples * 2


def npy_header(rows: int, samples: int) -> bytes:
    """Numpy leaves space in it for the number of rows to change, so that it has one length for any."""
    content = {"descr": "<i2", "fortran_order": False, "shape": (rows, len(LEADS), samples)}
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, content)
    return buffer.getvalue()


def allocate(signals: Path, rows: int, samples: int) -> None:
    """Make the file at its final size, all zeros, so that a full disk is found out before an hour of reading."""
    header = npy_header(rows, samples)
    size = len(header) + rows * row_bytes(samples)
    free = shutil.disk_usage(signals.parent).free
    if size > free:
        raise UserError(f"{signals.name} needs {size / 1e9:.2f} GB, but only {free / 1e9:.2f} GB are free.")
    with signals.open("wb") as stream:
        stream.write(header)
        stream.truncate(size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(stream.fileno(), 0, size)


def hash_along(signals: Path, final: SimpleQueue[int]) -> str:
    """SHA-256 of a file that is still being written, as far as `final` says that it is."""
    content, digest, start = np.memmap(signals, mode="r"), hashlib.sha256(), 0
    for end in iter(final.get, 0):
        digest.update(content[start:end].data)
        start = end
    return digest.hexdigest()


def close_up(signals: Path, kept: Sequence[int], samples: int) -> None:
    """Move the kept rows to the front, in order and in place, and cut the file behind them."""
    header = npy_header(len(kept), samples)
    size = row_bytes(samples)
    with signals.open("r+b") as stream:
        for target, source in enumerate(kept):
            if target != source:
                stream.seek(len(header) + source * size)
                row = stream.read(size)
                stream.seek(len(header) + target * size)
                stream.write(row)
        stream.seek(0)
        stream.write(header)
        stream.truncate(len(header) + len(kept) * size)
