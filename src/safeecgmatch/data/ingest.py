"""Read the records of an archive into the rows of a store, block by block, in as many processes as are worth it.

The file has its final size from the start and workers write their rows straight into it, so memory stays at a few
blocks per worker however large the archive is, and the bytes do not depend on the workers. Rows of records that cannot
be used stay zero until the file is closed up.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from safeecgmatch.data.preparation import Fit, Preparation, Rejected, prepare
from safeecgmatch.data.readers import Archive, Unreadable
from safeecgmatch.data.selection import UNREADABLE, Candidate
from safeecgmatch.errors import UserError
from safeecgmatch.leads import LEADS
from safeecgmatch.progress import Progress

RECORDS_PER_BLOCK = 32
WORTH_WORKERS = 1500  # records; below that, starting processes takes longer than reading


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


@dataclass(frozen=True)
class Ingestion:
    """What all blocks have in common; the archive's list is long, so a worker is given it once."""

    archive: Archive
    signals: Path
    preparation: Preparation


@dataclass(frozen=True)
class Block:
    """One block of candidates and where their rows begin in the file."""

    headers: tuple[str, ...]
    offset: int


_shared: Ingestion  # in a worker


def _share(ingestion: Ingestion) -> None:
    global _shared
    _shared = ingestion


def _ingest_shared(block: Block) -> list[Fit]:
    return ingest(_shared, block)


def _read_one(ingestion: Ingestion, header: str, row: np.ndarray) -> Fit:
    row.fill(0)
    try:
        return prepare(ingestion.archive.record(header), ingestion.preparation, row)
    except Unreadable as error:
        return Fit(reason=UNREADABLE, detail=str(error))
    except Rejected as error:
        return Fit(reason=error.reason, detail=error.detail)


def ingest(ingestion: Ingestion, block: Block) -> list[Fit]:
    """Read one block of records and write its rows; runs in a worker."""
    # One row, used again and again: it stays in the processor's cache from reading to writing.
    row = np.empty(ingestion.preparation.shape, dtype=np.int16)
    outcomes = []
    with ingestion.signals.open("r+b", buffering=0) as stream:
        for number, header in enumerate(block.headers):
            outcome = _read_one(ingestion, header, row)
            outcomes.append(outcome)
            if not outcome.reason:
                stream.seek(block.offset + number * row.nbytes)
                left = row.data.cast("B")
                while left:
                    left = left[stream.write(left) :]
    return outcomes


def _run(ingestion: Ingestion, blocks: Sequence[Block], workers: int) -> Iterator[list[Fit]]:
    if workers == 1:
        yield from (ingest(ingestion, block) for block in blocks)
        return
    # Spawned, not forked: the progress bar of the parent is a thread, and a fork would copy its locks.
    with ProcessPoolExecutor(workers, get_context("spawn"), _share, (ingestion,)) as pool:
        try:
            yield from pool.map(_ingest_shared, blocks)
        except BrokenProcessPool as error:
            raise UserError("A reading process was killed, perhaps for want of memory: free some.") from error
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def read_all(ingestion: Ingestion, candidates: Sequence[Candidate], workers: int | None, label: str) -> list[Fit]:
    """Write the row of every candidate that can be used; one outcome each."""
    if workers is None:
        workers = 1 if len(candidates) < WORTH_WORKERS else os.cpu_count() or 1
    _, samples = ingestion.preparation.shape
    begin, size = len(npy_header(len(candidates), samples)), row_bytes(samples)
    headers = [candidate.header for candidate in candidates]
    blocks = [
        Block(tuple(headers[first : first + RECORDS_PER_BLOCK]), begin + first * size)
        for first in range(0, len(headers), RECORDS_PER_BLOCK)
    ]
    outcomes: list[Fit] = []
    with Progress(len(candidates), label, "records") as bar:
        for done in _run(ingestion, blocks, workers):
            outcomes.extend(done)
            bar.advance(len(done))
    return outcomes


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
