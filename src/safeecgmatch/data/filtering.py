"""From an archive to a signal store: select, read in parallel, drop what cannot be used, report.

Workers write their rows straight into the file at its final size; rows of dropped records are closed up afterwards.
So memory stays at a few blocks per worker however large the archive is, and the bytes do not depend on the workers.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from safeecgmatch.data import cinc21, ptbxl
from safeecgmatch.data.page import draw_page
from safeecgmatch.data.preparation import PREPROCESSING, STANDARDISED, Rejected, prepare
from safeecgmatch.data.readers import Unreadable, read_record
from safeecgmatch.data.selection import DUPLICATE, UNREADABLE, Candidate, Drop, Selection
from safeecgmatch.engine.store import FORMAT, PAGE, REPORT, SIGNALS, TABLE, Entry, write_table
from safeecgmatch.errors import UserError
from safeecgmatch.files import atomic_path, sha256_of, write_json
from safeecgmatch.leads import LEADS, SECONDS
from safeecgmatch.progress import Progress

BLOCK = 32  # records per job
WORTH_WORKERS = 1500  # records; below that, starting processes takes longer than reading


@dataclass(frozen=True)
class Job:
    """One block of candidates and where their rows begin in the file."""

    folder: Path
    headers: tuple[str, ...]
    signals: Path
    offset: int
    sampling_rate: int
    preprocessing: str


@dataclass(frozen=True)
class Outcome:
    """What became of one candidate; `reason` is empty for a row that was written."""

    length: int = 0
    clipped: int = 0
    reason: str = ""
    detail: str = ""


def _read_one(job: Job, header: str, row: np.ndarray) -> Outcome:
    row.fill(0)
    try:
        fit = prepare(read_record(job.folder / header), job.sampling_rate, job.preprocessing, row)
    except Unreadable as error:
        return Outcome(reason=UNREADABLE, detail=str(error))
    except Rejected as error:
        return Outcome(reason=error.reason, detail=error.detail)
    return Outcome(fit.length, fit.clipped)


def ingest(job: Job) -> list[Outcome]:
    """Read one block of records and write its rows; runs in a worker."""
    # One row, used again and again: it stays in the processor's cache from reading to writing.
    row = np.empty((len(LEADS), SECONDS * job.sampling_rate), dtype=np.int16)
    outcomes = []
    with job.signals.open("r+b", buffering=0) as stream:
        for number, header in enumerate(job.headers):
            outcome = _read_one(job, header, row)
            outcomes.append(outcome)
            if not outcome.reason:
                stream.seek(job.offset + number * row.nbytes)
                left = row.data.cast("B")
                while left:
                    left = left[stream.write(left) :]
    return outcomes


def _row_bytes(samples: int) -> int:
    return len(LEADS) * samples * 2


def npy_header(rows: int, samples: int) -> bytes:
    """Numpy leaves room in it for the number of rows to change, so that it has one length for any."""
    content = {"descr": "<i2", "fortran_order": False, "shape": (rows, len(LEADS), samples)}
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, content)
    return buffer.getvalue()


def _run(jobs: Sequence[Job], workers: int) -> Iterator[list[Outcome]]:
    if workers == 1:
        yield from map(ingest, jobs)
        return
    # Spawned, not forked: the progress bar of the parent is a thread, and a fork would copy its locks.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(ingest, jobs)
        except BrokenProcessPool as error:
            raise UserError(
                "A reading process was killed, perhaps for want of memory: free some and run again."
            ) from error
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def allocate(signals: Path, rows: int, samples: int) -> None:
    """Make the file at its final size, all zeros, so that a full disk is found out before an hour of reading."""
    header = npy_header(rows, samples)
    size = len(header) + rows * _row_bytes(samples)
    free = shutil.disk_usage(signals.parent).free
    if size > free:
        raise UserError(f"{signals.name} needs {size / 1e9:.2f} GB, but only {free / 1e9:.2f} GB are free: make room.")
    with signals.open("wb") as stream:
        stream.write(header)
        stream.truncate(size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(stream.fileno(), 0, size)


def read_all(
    folder: Path, candidates: Sequence[Candidate], signals: Path, sampling_rate: int, preprocessing: str,
    workers: int, label: str, final: SimpleQueue[int],
) -> list[Outcome]:  # fmt: skip
    """Write the row of every candidate, zeros for the unusable ones; one outcome each.

    How much of the file is final is told to `final` as it grows, and its end by 0: after the first unusable record,
    as the rows behind it will move, or after the last record.
    """
    samples = SECONDS * sampling_rate
    begin, row_bytes = len(npy_header(len(candidates), samples)), _row_bytes(samples)
    headers = [candidate.header for candidate in candidates]
    jobs = [
        Job(
            folder,
            tuple(headers[first : first + BLOCK]),
            signals,
            begin + first * row_bytes,
            sampling_rate,
            preprocessing,
        )
        for first in range(0, len(headers), BLOCK)
    ]
    outcomes: list[Outcome] = []
    whole = True
    try:
        with Progress(len(candidates), label, "records") as bar:
            for job, done in zip(jobs, _run(jobs, workers), strict=True):
                outcomes.extend(done)
                whole = whole and not any(outcome.reason for outcome in done)
                if whole:
                    final.put(job.offset + len(done) * row_bytes)
                bar.advance(len(done))
    finally:
        final.put(0)
    return outcomes


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
    row_bytes = _row_bytes(samples)
    with signals.open("r+b") as stream:
        for target, source in enumerate(kept):
            if target != source:
                stream.seek(len(header) + source * row_bytes)
                row = stream.read(row_bytes)
                stream.seek(len(header) + target * row_bytes)
                stream.write(row)
        stream.seek(0)
        stream.write(header)
        stream.truncate(len(header) + len(kept) * row_bytes)


def judge_outcomes(candidates: Sequence[Candidate], outcomes: Sequence[Outcome]) -> tuple[list[int], list[Drop]]:
    """Positions to keep, and drops; of several usable records with one id the first is kept."""
    kept: list[int] = []
    dropped: list[Drop] = []
    ids: set[str] = set()
    for position, (candidate, outcome) in enumerate(zip(candidates, outcomes, strict=True)):
        if outcome.reason:
            dropped.append(Drop(candidate.record, outcome.reason, outcome.detail))
        elif candidate.record in ids:
            dropped.append(
                Drop(candidate.record, DUPLICATE, f"{candidate.header} repeats a record that was read before")
            )
        else:
            ids.add(candidate.record)
            kept.append(position)
    return kept, dropped


def make_report(
    selected: Selection, kept: Sequence[int], outcomes: Sequence[Outcome], dropped: Sequence[Drop], form: dict[str, Any]
) -> dict[str, Any]:
    candidates = [selected.candidates[position] for position in kept]
    by_source: dict[str, Counter[str]] = {}
    for candidate in candidates:
        by_source.setdefault(candidate.source, Counter())[candidate.label] += 1
    return {
        **form,
        "records": len(selected.candidates) + len(selected.dropped),
        "single_label": dict(Counter(candidate.label for candidate in selected.candidates)),
        "kept": len(kept),
        "class_counts": dict(Counter(candidate.label for candidate in candidates)),
        "class_counts_by_source": {source: dict(counts) for source, counts in by_source.items()},
        "dropped_counts": dict(Counter(drop.reason for drop in dropped)),
        "dropped": [
            {"record": drop.record, "reason": drop.reason} | ({"detail": drop.detail} if drop.detail else {})
            for drop in sorted(dropped, key=lambda drop: (drop.reason, drop.record))
        ],
        "zero_padded": sum(outcomes[position].length < form["samples"] for position in kept),
        "clipped": [selected.candidates[position].record for position in kept if outcomes[position].clipped],
        "warnings": selected.warnings,
    }


def filter_dataset(
    dataset: str,
    folder: Path,
    target: Path,
    sampling_rate: int,
    preprocessing: str,
    files: Sequence[str] | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Write the signal store of `dataset` to the folder `target`, whole or not at all; returns its report."""
    if preprocessing not in PREPROCESSING:
        raise UserError(f"There is no preprocessing {preprocessing!r}: use one of {', '.join(PREPROCESSING)}.")
    selected = ptbxl.select(folder, sampling_rate) if dataset == "ptbxl" else cinc21.select(folder, files)
    candidates = selected.candidates
    if workers is None:
        workers = 1 if len(candidates) < WORTH_WORKERS else os.cpu_count() or 1
    samples = SECONDS * sampling_rate
    form = {
        "dataset": dataset,
        "sampling_rate": sampling_rate,
        "samples": samples,
        "standardise": preprocessing in STANDARDISED,
        "preprocessing": preprocessing,
    }
    for leftover in target.parent.glob(f".{target.name}.*"):
        shutil.rmtree(leftover)  # gigabytes of a run that was killed
    try:
        # Hashing takes one thread as long as drawing and a good part of reading, so it is done beside them.
        with atomic_path(target) as partial, ThreadPoolExecutor(1) as aside:
            partial.mkdir()
            signals = partial / SIGNALS
            allocate(signals, len(candidates), samples)
            final: SimpleQueue[int] = SimpleQueue()
            checksum = aside.submit(hash_along, signals, final)
            label = f"filter {dataset}"
            outcomes = read_all(folder, candidates, signals, sampling_rate, preprocessing, workers, label, final)
            kept, unusable = judge_outcomes(candidates, outcomes)
            report = make_report(selected, kept, outcomes, [*selected.dropped, *unusable], form)
            if not kept:
                raise UserError(f"{folder} has no usable record: {report['dropped_counts']}; check the archive.")
            if len(kept) < len(candidates):
                checksum.result()  # nobody may read the file while its rows move
                close_up(signals, kept, samples)
                checksum = aside.submit(sha256_of, signals)
            entries = [_entry(candidates[position], outcomes[position].length) for position in kept]
            write_table(partial / TABLE, entries)
            write_json(partial / REPORT, report)
            rows = np.load(signals, mmap_mode="r", allow_pickle=False)
            draw_page(
                partial / PAGE,
                rows,
                entries,
                sampling_rate,
                dataset if preprocessing == "none" else f"{dataset}, {preprocessing} signals",
            )
            write_json(partial / FORMAT, form | {"signals_sha256": checksum.result()})
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise UserError(f"The disk that holds {target} is full: make room and run the filter stage again.") from error
    return report


def _entry(candidate: Candidate, length: int) -> Entry:
    return Entry(candidate.record, candidate.patient, candidate.label, candidate.source, candidate.fold, length)
