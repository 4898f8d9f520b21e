"""Where the records of a dataset come from, and what their source alone tells: aggregates, from records.csv.

A corpus of several sources in which class and source are correlated lets a network learn the source. So each source is
scored by itself, beside a guess that knows nothing but the source.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from safeecgmatch.config import Params
from safeecgmatch.engine.signal_store import TABLE, Entry, read_table
from safeecgmatch.errors import UserError
from safeecgmatch.reporting.names import source_names
from safeecgmatch.reporting.plot_data import Member, main_runs
from safeecgmatch.reporting.stored import StoredCell

ALL, GUESS = "all", "guess"
FEWEST = 20  # test records over all seeds: an accuracy of fewer would say something about single ones
CORPUS_COLUMNS = ["dataset", "source", "label", "records", "patients"]
SOURCE_COLUMNS = ["dataset", "ood", "row", "source", "seeds", "records", "acc"]


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


def accuracies(members: list[Member], entries: list[Entry]) -> dict[str, dict[str, list[npt.NDArray[np.bool_]]]]:
    """Which answers on test are right, by row (the members', or the guess) and source, an array for each seed."""
    source_of = {entry.record: entry.source for entry in entries}
    found: dict[str, dict[str, list[npt.NDArray[np.bool_]]]] = {"": defaultdict(list), GUESS: defaultdict(list)}
    for member, branch in members:
        labels = member.predictions["test.label"]
        try:
            sources = np.array([source_of[record] for record in member.predictions["test.record"].tolist()])
        except KeyError:
            raise UserError(
                f"{member.cell.path} was tested on records that data/filtered/{member.cell.dataset} does not have; "
                f"run `dvc repro filter@{member.cell.dataset}`, or train the cell again."
            ) from None
        guess = commonest(entries, member.summary["classes"])
        answers = {
            "": member.predictions[f"test.log_probs.{branch}"].argmax(axis=1) == labels,
            GUESS: np.array([guess.get(source, -1) for source in sources]) == labels,
        }
        for row, right in answers.items():
            for source in (ALL, *sorted(set(source_of.values()))):
                here = right if source == ALL else right[sources == source]
                if here.size:
                    found[row][source].append(here)
    return found


def source_frame(stored: list[StoredCell], known: Mapping[str, list[Entry]]) -> pd.DataFrame:
    """Accuracy on test by row and source, mean over the seeds; the guess once for each setting."""
    lines: dict[tuple, dict[str, Any]] = {}
    for (dataset, row, ood), members in main_runs(stored).items():
        entries = known.get(dataset, [])
        if len({entry.source for entry in entries}) < 2:
            continue
        for name, by_source in accuracies(members, entries).items():
            for source, seeds in by_source.items():
                records = sum(right.size for right in seeds)
                mean = float(np.mean([right.mean() for right in seeds])) if records >= FEWEST else None
                key = (dataset, ood, name or row, source)
                line = {"seeds": len(seeds), "records": records, "acc": mean}
                if key not in lines or lines[key]["seeds"] < len(seeds):  # the guess: from the row with most seeds
                    lines[key] = {**dict(zip(SOURCE_COLUMNS, key, strict=False)), **line}
    return pd.DataFrame(list(lines.values()), columns=SOURCE_COLUMNS)


def source_frames(stored: list[StoredCell], filtered: Path) -> dict[str, pd.DataFrame]:
    """plots/corpus.csv and plots/sources.csv; empty where no data lie in `filtered`."""
    known = read_entries(filtered, list(dict.fromkeys(member.cell.dataset for member in stored)))
    return {"corpus": corpus_frame(known), "sources": source_frame(stored, known)}


def sources_of(corpus: pd.DataFrame, dataset: str) -> list[str]:
    """The largest first."""
    here = corpus[corpus["dataset"] == dataset]
    return here.groupby("source")["records"].sum().sort_values(ascending=False, kind="stable").index.tolist()


def with_corpora(params: Params, corpus: pd.DataFrame) -> Params:
    """The params of a report: a dataset of real records from fewer sources than it has is named with its corpus."""
    sources = {}
    for dataset in params.datasets():
        source, known = params.data.source(dataset), source_names(dataset)
        found = [known.get(name, name) for name in sources_of(corpus, dataset)]
        if source.source != "phantom" and found and len(found) < len(known):
            source = source.model_copy(update={"corpus": found})
        sources[dataset] = source
    return params.model_copy(update={"data": params.data.model_copy(update=sources)})
