"""Where the records of a dataset come from, and what their source alone tells: aggregates, from records.csv.

A corpus of several sources in which class and source are correlated lets a network learn the source. So each source is
scored by itself, beside a guess that knows nothing but the source.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from safeecgmatch.engine.signal_store import TABLE, Entry, read_table
from safeecgmatch.errors import UserError
from safeecgmatch.reporting.plot_data import shown
from safeecgmatch.reporting.stored import StoredCell

ALL = "all"
FEWEST = 20  # test records: an accuracy of fewer would say something about single ones
CORPUS_COLUMNS = ["dataset", "source", "label", "records", "patients"]
SOURCE_COLUMNS = ["dataset", "row", "ood", "seed", "source", "records", "acc", "guess"]


def read_entries(filtered: Path, datasets: list[str]) -> dict[str, list[Entry]]:
    """The records of each dataset that has been filtered here."""
    files = {dataset: filtered / dataset / TABLE for dataset in datasets}
    return {dataset: read_table(file) for dataset, file in files.items() if file.is_file()}


def corpus_frame(known: Mapping[str, list[Entry]]) -> pd.DataFrame:
    """Records by source and class; the number of the dataset's patients beside each, blank where nobody is named."""
    lines = []
    for dataset, entries in known.items():
        patients = len({entry.patient for entry in entries if entry.patient}) or None
        for (source, label), records in sorted(Counter((entry.source, entry.label) for entry in entries).items()):
            lines.append((dataset, source, label, records, patients))
    return pd.DataFrame(lines, columns=CORPUS_COLUMNS).astype({"patients": "Int64"})


def commonest(entries: list[Entry], classes: list[str]) -> dict[str, int]:
    """The commonest seen class of each source, as its label; the first of equals."""
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for entry in entries:
        if entry.label in classes:
            counts[entry.source][classes.index(entry.label)] += 1
    return {source: max(sorted(found), key=lambda label: found[label]) for source, found in counts.items()}


def source_frame(member: StoredCell, entries: list[Entry]) -> pd.DataFrame:
    """Accuracy of one cell on test by source, beside that of a guess which knows the source alone."""
    source_of = {entry.record: entry.source for entry in entries}
    known, rows = sorted(set(source_of.values())), shown(member)
    if len(known) < 2 or not rows:
        return pd.DataFrame(columns=SOURCE_COLUMNS)
    cell, labels = member.cell, member.predictions["test.label"]
    try:
        sources = np.array([source_of[record] for record in member.predictions["test.record"].tolist()])
    except KeyError:
        raise UserError(
            f"{cell.path} was tested on records that data/filtered/{cell.dataset} does not have; "
            f"run `dvc repro filter@{cell.dataset}`, or train the cell again."
        ) from None
    guess = commonest(entries, member.summary["classes"])
    guessed = np.array([guess.get(source, -1) for source in sources]) == labels
    lines = []
    for row, branch in rows.items():
        right = member.predictions[f"test.log_probs.{branch}"].argmax(axis=1) == labels
        for source in (ALL, *known):
            here = np.full(sources.shape, True) if source == ALL else sources == source
            means = (right[here].mean(), guessed[here].mean()) if here.sum() >= FEWEST else (None, None)
            lines.append((cell.dataset, row, cell.ood, cell.seed, source, here.sum(), *means))
    return pd.DataFrame(lines, columns=SOURCE_COLUMNS).astype({"acc": float, "guess": float})
