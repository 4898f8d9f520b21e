"""The draws behind a split: 8:1:1 parts, labelled records, unlabelled pools. Pure functions of rows and generators.

The generators are NumPy's legacy `RandomState`, seeded like the global generator of the published code: same stream,
same records, without a global state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from safeecgmatch.engine.split_files import Rows
from safeecgmatch.errors import UserError

Labels = NDArray[np.str_]

# CinC 2021 at 60 % in the published code; the sizes of smaller corpora are these in proportion to their pools.
FIXED_POOL, FIXED_VALIDATION, FIXED_TEST = 30_826, 4_277, 4_276
SHARES = (0.8, 0.1, 0.1)  # train, validation, test


@dataclass(frozen=True)
class Task:
    """What a pool is made of: `ood` percent of its `pool_size` records are of unseen classes."""

    seen: tuple[str, ...]
    unseen: tuple[str, ...]
    labels_per_class: int
    pool_size: int
    ood: int


@dataclass(frozen=True)
class Parts:
    """Disjoint rows of all classes, in the order in which they are drawn from."""

    train: Rows
    validation: Rows
    test: Rows


@dataclass(frozen=True)
class Draw:
    labelled: Rows
    pool: Rows


def random_parts(labels: Labels, seed: int) -> Parts:
    """80/10/10 stratified by class NAME, in scikit-learn's shuffled order: the label draw starts from that order."""
    from sklearn.model_selection import train_test_split  # slow to import; reading a split does not need it

    _require_strata(labels)
    train, rest = train_test_split(np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=seed)
    validation, test = train_test_split(rest, test_size=0.5, stratify=labels[rest], random_state=seed)
    return Parts(train, validation, test)


def patient_parts(labels: Labels, patients: Labels, seed: int) -> Parts:
    """About 80/10/10 of every class with all records of a patient on one side; a record without patient is drawn alone.

    Patients with many records first, in random order among equals, each to the side that lacks most of their classes.
    """
    _require_strata(labels)
    names = [f"patient {patient}" if patient else f"row {row}" for row, patient in enumerate(patients)]
    known, patient_of = np.unique(names, return_inverse=True)
    classes, class_of = np.unique(labels, return_inverse=True)
    counts = np.zeros((len(known), len(classes)))
    np.add.at(counts, (patient_of, class_of), 1)
    order = RandomState(seed).permutation(len(known))
    order = order[np.argsort(-counts[order].sum(axis=1), kind="stable")]
    wanted = np.outer(SHARES, counts.sum(axis=0))
    filled = np.zeros_like(wanted)
    side_of = np.zeros(len(known), dtype=np.int64)
    for patient in order:
        side = np.argmax((1 - filled / wanted) @ counts[patient])
        filled[side] += counts[patient]
        side_of[patient] = side
    return Parts(*(np.flatnonzero(side_of[patient_of] == side) for side in range(len(SHARES))))


def _require_strata(labels: Labels) -> None:
    names, counts = np.unique(labels, return_counts=True)
    if counts.min() < 10:
        raise UserError(
            f"Class {names[counts.argmin()]} has {counts.min()} records, but a split 8:1:1 needs at least 10 of each: "
            "use a larger archive."
        )


def fold_parts(folds: Labels) -> Parts:
    """PTB-XL's own folds: 1 to 8, 9, 10."""
    known = {str(number) for number in range(1, 11)}
    unknown = sorted(set(folds.tolist()) - known)
    if unknown:
        raise UserError(
            f"split.strategy strat_fold needs a fold from 1 to 10 for every record, but one has {unknown[0]!r}: "
            "only PTB-XL has folds, so use random or patient here."
        )
    return Parts(*(np.flatnonzero(np.isin(folds, side)) for side in ([*map(str, range(1, 9))], ["9"], ["10"])))


def draw_labelled(rows: Rows, labels: Labels, task: Task, rng: RandomState) -> tuple[Rows, Rows]:
    """Per seen class, shuffle its rows and take the first few; also returns what is left, classes joined in order."""
    chosen, left = [], []
    for name in task.seen:
        members = rows[labels[rows] == name]
        if len(members) < task.labels_per_class:
            raise UserError(
                f"Class {name} has {len(members)} training records, but labels_per_class is {task.labels_per_class}: "
                "lower it or use a larger archive."
            )
        rng.shuffle(members)
        chosen.append(members[: task.labels_per_class])
        left.append(members[task.labels_per_class :])
    return np.concatenate(chosen), np.concatenate(left)


def few_of_each(rows: Rows, labels: Labels, classes: Sequence[str], few: int, rng: RandomState) -> Rows:
    """At most `few` rows of each class, drawn at random, in the order in which `rows` has them."""
    kept = []
    for name in classes:
        members = rows[labels[rows] == name]
        rng.shuffle(members)
        kept.append(members[:few])
    return rows[np.isin(rows, np.concatenate(kept))]


def fill(rows: Rows, wanted: int, rng: RandomState, what: str) -> Rows:
    """Enough distinct rows: shuffle and cut. Too few: all of them as they are, and the rest with replacement."""
    if len(rows) >= wanted:
        rows = rows.copy()
        rng.shuffle(rows)
        return rows[:wanted]
    if not len(rows):
        raise UserError(f"The pool needs {wanted} {what} records, but none is left to draw from: use a larger archive.")
    return np.concatenate([rows, rng.choice(rows, wanted - len(rows), replace=True)])


def of_classes(rows: Rows, labels: Labels, names: Sequence[str]) -> Rows:
    """The rows of these classes, class after class, each in the order given."""
    return np.concatenate([rows[labels[rows] == name] for name in names])


def fixed_volume(train: Rows, labels: Labels, task: Task, seed: int) -> Draw:
    """A pool of fixed size and ratio, oversampled where distinct records run short."""
    rng = RandomState(seed)
    labelled, left = draw_labelled(train, labels, task, rng)
    unseen_size = round(task.pool_size * (task.ood / 100))
    inside = fill(left, task.pool_size - unseen_size, rng, "seen")
    outside = fill(of_classes(train, labels, task.unseen), unseen_size, rng, "unseen") if unseen_size else train[:0]
    pool = np.concatenate([inside, outside])
    rng.shuffle(pool)
    return Draw(labelled, pool)


def all_unseen(train: Rows, labels: Labels, task: Task, seed: int) -> Draw:
    """CinC 2021 in the published code, not at 60 %: every unseen record, and as many seen ones as give the ratio.

    `pool_size` is not used. Where too few seen records are left, all are kept, unshuffled, and the ratio is missed.
    """
    if task.ood == 0:
        raise UserError("The release's CinC 2021 pool is built around its unseen records: OOD level 0 is not defined.")
    rng = RandomState(seed)
    labelled, left = draw_labelled(train, labels, task, rng)
    outside = of_classes(train, labels, task.unseen)
    ratio = task.ood / 100
    wanted = int(len(outside) * (1 - ratio) / ratio)
    if len(left) >= wanted:
        rng.shuffle(left)
        left = left[:wanted]
    pool = np.concatenate([left, outside])
    rng.shuffle(pool)
    return Draw(labelled, pool)


def _resize(part: Rows, size: int, train: Rows) -> tuple[Rows, Rows]:
    """Return a surplus to the END of train, fill a deficit from its FRONT."""
    short = max(size - len(part), 0)
    part, surplus = np.concatenate([part[:size], train[:short]]), part[size:]
    return part, np.concatenate([train[short:], surplus])


def fixed_split(labels: Labels, task: Task, split_seed: int, seed: int) -> tuple[Parts, Draw]:
    """CinC 2021 at 60 % in the published code: split, labels and pool by one generator whatever the run seed.

    Only the order of the pool depends on `seed`. Unseen records come from the whole corpus; those that the pool leaves
    over are returned with the test part. Where a small corpus runs short, the pool is filled as in `fill`.
    """
    rng = RandomState(split_seed)
    rows = {name: np.flatnonzero(labels == name) for name in task.seen}
    total = sum(len(members) for members in rows.values())
    sizes = [round(size * task.pool_size / FIXED_POOL) for size in (FIXED_VALIDATION, FIXED_TEST)]
    pieces: dict[str, list[Rows]] = {"validation": [], "test": [], "train": []}
    for members in rows.values():
        rng.shuffle(members)
        first, second = (round(size * (len(members) / total)) for size in sizes)
        for part, piece in zip(pieces, np.split(members, [first, first + second]), strict=True):
            pieces[part].append(piece)
    validation, test, train = (np.concatenate(pieces[part]) for part in pieces)
    rng.shuffle(validation)
    rng.shuffle(test)
    validation, train = _resize(validation, sizes[0], train)
    test, train = _resize(test, sizes[1], train)
    labelled, left = draw_labelled(train, labels, task, rng)
    unseen_size = task.pool_size * task.ood // 100  # rounded down: 18,495 of 30,826
    inside = fill(left, task.pool_size - unseen_size, rng, "seen")
    every = np.flatnonzero(np.isin(labels, task.unseen))
    outside = fill(every, unseen_size, rng, "unseen")
    pool = np.concatenate([inside, outside])
    RandomState(seed).shuffle(pool)
    train = np.concatenate([train, np.unique(outside)])
    test = np.concatenate([test, np.setdiff1d(every, outside)])
    return Parts(train, validation, test), Draw(labelled, pool)
