"""Which rows of a filtered dataset are labelled, unlabelled, for validation, for test: index lists, never signals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import RandomState

from safeecgmatch.data import split_draws
from safeecgmatch.data.datasets import find_dataset
from safeecgmatch.data.split_draws import Parts, Rows, Task
from safeecgmatch.engine.signal_store import FORMAT, TABLE, SignalStore
from safeecgmatch.engine.split_files import PARTS, SPLIT, SUMMARY, Split
from safeecgmatch.errors import UserError
from safeecgmatch.files import atomic_path, sha256_of, write_json

FEW = 50  # validation records of a class in the arm val150


def _parts(store: SignalStore, strategy: str, seed: int) -> Parts:
    if strategy == "patient":
        return split_draws.patient_parts(store.labels, np.array([entry.patient for entry in store.entries]), seed)
    if strategy == "strat_fold":
        return split_draws.fold_parts(np.array([entry.fold for entry in store.entries]))
    return split_draws.random_parts(store.labels, seed)


def _labels_of(rows: Rows, store: SignalStore, task: Task) -> Rows:
    """0..K-1 in seen order, K for unseen."""
    number = {name: place for place, name in enumerate(task.seen)}
    return np.array([number.get(name, len(task.seen)) for name in store.labels[rows].tolist()], dtype=np.int64)


def _counts(rows: Rows, store: SignalStore) -> dict[str, int]:
    return dict(sorted(Counter(store.labels[rows].tolist()).items()))


def straddling(parts: Parts, patients: Sequence[str]) -> int:
    """How many patients have records on more than one side."""
    sides: dict[str, set[int]] = {}
    for side, rows in enumerate((parts.train, parts.validation, parts.test)):
        for row in rows.tolist():
            if patients[row]:
                sides.setdefault(patients[row], set()).add(side)
    return sum(len(found) > 1 for found in sides.values())


def make_split(
    store: SignalStore, *, ood: int, seed: int, split_seed: int, strategy: str, labels_per_class: int, pool_size: int,
    switches: Mapping[str, Any], arm: str = "",
) -> Split:  # fmt: skip
    """The rows of one cell's labelled set, pool, validation, test and open test set, with a summary.

    The arm `seen_pool` leaves the unseen records out of the pool, `val150` all but 50 of each class out of validation.
    """
    classes = find_dataset(store.dataset).open_set(ood, switches)
    task = Task(classes.seen, classes.unseen, labels_per_class, pool_size, ood)
    absent = [name for name in (*task.seen, *task.unseen) if name not in store.labels]
    if absent:
        raise UserError(f"{store.folder} has no record of class {absent[0]}: use a larger archive.")
    if classes.rule == "fixed_split":
        if strategy != "random":
            raise UserError(
                f"split.strategy {strategy} does not go with the release's fixed split of {store.dataset} at {ood} %: "
                "use random, or the reading of protocol paper."
            )
        parts, draw = split_draws.fixed_split(store.labels, task, split_seed, seed)
    else:
        parts = _parts(store, strategy, split_seed)
        draw_pool = split_draws.all_unseen if classes.rule == "all_unseen" else split_draws.fixed_volume
        draw = draw_pool(parts.train, store.labels, task, seed)
    rows = {
        "labelled": draw.labelled,
        "pool": draw.pool,
        "validation": parts.validation[np.isin(store.labels[parts.validation], task.seen)],
        "test": parts.test[np.isin(store.labels[parts.test], task.seen)],
        "open_test": parts.test,
    }
    if arm == "seen_pool":
        rows["pool"] = rows["pool"][np.isin(store.labels[rows["pool"]], task.seen)]
    if arm == "val150":
        rows["validation"] = split_draws.few_of_each(
            rows["validation"], store.labels, task.seen, FEW, RandomState(seed)
        )
    arrays = {name: part.astype(np.int64) for name, part in rows.items()}
    arrays |= {f"{name}_label": _labels_of(part, store, task) for name, part in rows.items()}
    settings = {"ood": ood, "seed": seed, "split_seed": split_seed, "strategy": strategy, "rule": classes.rule}
    settings |= {"arm": arm} if arm else {}
    # Cells depend on their records through this; store.json has the digest of the signals.
    settings["drawn_from"] = {name: sha256_of(store.folder / name) for name in (FORMAT, TABLE)}
    return Split(task.seen, task.unseen, summary=settings | summarise(store, task, parts, rows), **arrays)


def summarise(store: SignalStore, task: Task, parts: Parts, rows: Mapping[str, Rows]) -> dict[str, Any]:
    pool, copies = np.unique(rows["pool"], return_counts=True)
    unseen = np.isin(store.labels[rows["pool"]], task.unseen)
    patients = [entry.patient for entry in store.entries]
    sides = {"train": parts.train, "validation": parts.validation, "test": parts.test}
    return {
        "dataset": store.dataset,
        "seen": list(task.seen),
        "unseen": list(task.unseen),
        "records": len(store),
        "parts": {name: len(part) for name, part in sides.items()},
        "parts_class_counts": {name: _counts(part, store) for name, part in sides.items()},
        "sizes": {name: len(part) for name, part in rows.items()},
        "class_counts": {name: _counts(part, store) for name, part in rows.items()},
        "pool_distinct": len(pool),
        "pool_duplicates": len(rows["pool"]) - len(pool),
        "pool_most_copies": int(copies.max()),
        "pool_unseen": int(unseen.sum()),
        "pool_unseen_distinct": len(np.unique(rows["pool"][unseen])),
        "pool_unseen_share": float(unseen.mean()),
        "patients": len({patient for patient in patients if patient}),
        "records_without_patient": patients.count(""),
        "patients_straddling": straddling(parts, patients),
    } | _warnings(len(rows["pool"]), len(pool))


def _warnings(size: int, distinct: int) -> dict[str, list[str]]:
    """No key where there is nothing to warn of, so that it changes no other summary."""
    if size - distinct <= size / 2:
        return {}
    repeats = f"{size - distinct:,} of the pool's {size:,} records are repeats of the other {distinct:,}"
    return {"warnings": [f"{repeats}: lower pool_size in params.yaml or use a larger archive."]}


def write_split(split: Split, folder: Path) -> None:
    """Write both files, whole or not at all."""
    with atomic_path(folder) as partial:
        partial.mkdir()
        arrays = {name: getattr(split, name) for part in PARTS for name in (part, f"{part}_label")}
        np.savez(partial / SPLIT, **arrays)
        write_json(partial / SUMMARY, split.summary)
