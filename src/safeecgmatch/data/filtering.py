"""From an archive to a signal store: select, read, drop what cannot be used, close up, report."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from safeecgmatch.data.datasets import find_dataset
from safeecgmatch.data.ecg_pictures import draw_page
from safeecgmatch.data.ingest import Ingestion, allocate, close_up, read_all
from safeecgmatch.data.preparation import PREPROCESSING, STANDARDISED, Fit
from safeecgmatch.data.readers import Archive
from safeecgmatch.data.selection import DUPLICATE, Candidate, Drop, Verdicts
from safeecgmatch.engine.signal_store import FORMAT, PAGE, REPORT, SIGNALS, TABLE, write_table
from safeecgmatch.errors import UserError
from safeecgmatch.files import atomic_path, sha256_of, write_json
from safeecgmatch.leads import SECONDS


def judge_outcomes(candidates: Sequence[Candidate], outcomes: Sequence[Fit]) -> tuple[list[int], list[Drop]]:
    """Positions to keep, and drops; of several usable records with one id the first is kept."""
    kept: list[int] = []
    dropped: list[Drop] = []
    ids: set[str] = set()
    for position, (candidate, outcome) in enumerate(zip(candidates, outcomes, strict=True)):
        if outcome.reason:
            dropped.append(Drop(candidate.record, outcome.reason, outcome.detail))
        elif candidate.record in ids:
            detail = f"{candidate.header} repeats a record that was read before"
            dropped.append(Drop(candidate.record, DUPLICATE, detail))
        else:
            ids.add(candidate.record)
            kept.append(position)
    return kept, dropped


def make_report(
    selected: Verdicts, kept: Sequence[int], outcomes: Sequence[Fit], dropped: Sequence[Drop], form: dict[str, Any]
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
    dataset: str, folder: Path, target: Path, sampling_rate: int, preprocessing: str,
    files: Mapping[str, str] | None = None, workers: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Write the signal store of `dataset` to the folder `target`, whole or not at all; returns its report.

    `files` are the archive's files with their SHA-256, as a manifest lists them; without it, what lies there is taken.
    """
    if preprocessing not in PREPROCESSING:
        raise UserError(f"There is no preprocessing {preprocessing!r}: use one of {', '.join(PREPROCESSING)}.")
    descriptor = find_dataset(dataset)
    if files is None:
        files = dict.fromkeys(descriptor.files(sampling_rate).present_in(folder), "")
    archive = Archive(folder, files, dataset)
    selected = descriptor.select(archive, sampling_rate)
    candidates = selected.candidates
    samples = SECONDS * sampling_rate
    form = {
        "dataset": dataset,
        "sampling_rate": sampling_rate,
        "samples": samples,
        "standardise": preprocessing in STANDARDISED,
        "preprocessing": preprocessing,
    }
    try:
        with atomic_path(target) as partial, ThreadPoolExecutor(1) as aside:
            partial.mkdir()
            signals = partial / SIGNALS
            allocate(signals, len(candidates), samples)
            ingestion = Ingestion(archive, signals, descriptor.preparation(sampling_rate, preprocessing))
            outcomes = read_all(ingestion, candidates, workers, f"filter {dataset}")
            kept, unusable = judge_outcomes(candidates, outcomes)
            report = make_report(selected, kept, outcomes, [*selected.dropped, *unusable], form)
            if not kept:
                raise UserError(f"{folder} has no usable record: {report['dropped_counts']}; check the archive.")
            if len(kept) < len(candidates):
                close_up(signals, kept, samples)
            checksum = aside.submit(sha256_of, signals)  # takes as long as drawing, so it is done beside it
            entries = [candidates[position].entry(outcomes[position].length) for position in kept]
            write_table(partial / TABLE, entries)
            write_json(partial / REPORT, report)
            rows = np.load(signals, mmap_mode="r", allow_pickle=False)
            title = dataset if preprocessing == "none" else f"{dataset}, {preprocessing} signals"
            draw_page(partial / PAGE, rows, entries, sampling_rate, title)
            write_json(partial / FORMAT, form | {"signals_sha256": checksum.result()})
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise UserError(f"The disk that holds {target} is full: free some space, then run filter again.") from error
    return report
