"""The draws against a second, naive version of the same rules: lists, and NumPy's global generator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from safeecgmatch.data.split_draws import (
    Labels,
    Task,
    all_unseen,
    fixed_split,
    fixed_volume,
    fold_parts,
    patient_parts,
    random_parts,
)
from safeecgmatch.errors import UserError

NAMES = ("NORM", "RHY", "CD", "ST", "OTHER")


def make_labels(counts: tuple[int, ...], seed: int = 0) -> Labels:
    labels = np.repeat(NAMES, counts)
    np.random.default_rng(seed).shuffle(labels)
    return labels


def naive_start(train: list[int], labels: Labels, task: Task, seed: int) -> tuple[list[int], list[int], list[int]]:
    np.random.seed(seed)
    labelled, left = [], []
    for name in task.seen:
        rows = [row for row in train if labels[row] == name]
        np.random.shuffle(rows)
        labelled += rows[: task.labels_per_class]
        left += rows[task.labels_per_class :]
    return labelled, left, [row for name in task.unseen for row in train if labels[row] == name]


def naive_fixed_volume(train: list[int], labels: Labels, task: Task, seed: int) -> tuple[list[int], list[int]]:
    labelled, left, outside = naive_start(train, labels, task, seed)
    wanted = round(task.pool_size * task.ood / 100)
    pool: list[int] = []
    for rows, size in ((left, task.pool_size - wanted), (outside, wanted)):
        if len(rows) >= size:
            np.random.shuffle(rows)
            pool += rows[:size]
        else:
            pool += rows + np.random.choice(rows, size - len(rows), replace=True).tolist()
    np.random.shuffle(pool)
    return labelled, pool


def naive_all_unseen(train: list[int], labels: Labels, task: Task, seed: int) -> tuple[list[int], list[int]]:
    labelled, left, outside = naive_start(train, labels, task, seed)
    rho = task.ood / 100
    size = int(len(outside) * (1 - rho) / rho)
    if len(left) >= size:
        np.random.shuffle(left)
        left = left[:size]
    pool = left + outside
    np.random.shuffle(pool)
    return labelled, pool


def naive_fixed_split(
    labels: Labels, task: Task, sizes: tuple[int, int], pool_sizes: tuple[int, int], seed: int
) -> dict[str, list[int]]:
    rng = np.random.RandomState(42)
    rows = {name: [row for row in range(len(labels)) if labels[row] == name] for name in NAMES}
    total = sum(len(rows[name]) for name in task.seen)
    validation, test, train = [], [], []
    for name in task.seen:
        members = rows[name][:]
        rng.shuffle(members)
        share = len(members) / total
        first, second = round(sizes[0] * share), round(sizes[1] * share)
        validation += members[:first]
        test += members[first : first + second]
        train += members[first + second :]
    rng.shuffle(validation)
    rng.shuffle(test)
    for part, size in ((validation, sizes[0]), (test, sizes[1])):
        while len(part) < size:
            part.append(train.pop(0))
        train += part[size:]
        del part[size:]
    labelled, left = [], []
    for name in task.seen:
        members = [row for row in train if labels[row] == name]
        rng.shuffle(members)
        labelled += members[: task.labels_per_class]
        left += members[task.labels_per_class :]
    rng.shuffle(left)
    outside = sorted(row for name in task.unseen for row in rows[name])
    rng.shuffle(outside)
    pool = left[: pool_sizes[0]] + outside[: pool_sizes[1]]
    np.random.seed(seed)
    np.random.shuffle(pool)
    return {"validation": validation, "test": test, "labelled": labelled, "pool": pool}


@settings(max_examples=25, deadline=None)
@given(
    counts=st.tuples(*[st.integers(20, 60)] * 5),
    per_class=st.integers(1, 15),
    pool_size=st.integers(10, 400),
    ood=st.sampled_from([10, 30, 50, 60, 90]),
    seed=st.integers(0, 1000),
)
def test_pools_equal_the_naive_version(
    counts: tuple[int, ...], per_class: int, pool_size: int, ood: int, seed: int
) -> None:
    labels = make_labels(counts, seed)
    task = Task(("NORM", "RHY", "CD"), ("ST", "OTHER"), per_class, pool_size, ood)
    train = random_parts(labels, 42).train
    for draw, naive in ((fixed_volume, naive_fixed_volume), (all_unseen, naive_all_unseen)):
        drawn = draw(train, labels, task, seed)
        labelled, pool = naive(train.tolist(), labels, task, seed)
        assert drawn.labelled.tolist() == labelled
        assert drawn.pool.tolist() == pool
        assert not set(labelled) & set(pool)
    assert len(fixed_volume(train, labels, task, seed).pool) == pool_size


def test_the_input_is_left_alone() -> None:
    labels = make_labels((30,) * 5)
    train = random_parts(labels, 42).train
    before = train.copy()
    fixed_volume(train, labels, Task(("NORM", "RHY", "CD"), ("ST", "OTHER"), 5, 40, 30), 1)
    np.testing.assert_array_equal(train, before)


def test_level_zero_is_a_pool_of_seen_records() -> None:
    labels = make_labels((30,) * 5)
    task = Task(("NORM", "RHY", "CD"), ("ST", "OTHER"), 5, 40, 0)
    assert np.isin(labels[fixed_volume(random_parts(labels, 42).train, labels, task, 1).pool], task.seen).all()
    with pytest.raises(UserError, match="OOD level 0 is not defined"):
        all_unseen(random_parts(labels, 42).train, labels, task, 1)


SWAPPED = (("RHY", "CD", "OTHER"), ("NORM", "ST"))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("counts", [(20_000, 15_000, 7_003, 4_000, 6_001), (30_000, 13_001, 12_002, 1_000, 5_000)])
def test_the_fixed_split_has_the_published_sizes_and_equals_the_naive_version(
    counts: tuple[int, ...], seed: int
) -> None:
    labels = make_labels(counts)
    task = Task(*SWAPPED, 104, 30_826, 60)
    parts, draw = fixed_split(labels, task, 42, seed)
    naive = naive_fixed_split(labels, task, (4277, 4276), (12_331, 18_495), seed)
    seen_test = parts.test[np.isin(labels[parts.test], task.seen)]
    assert (len(parts.validation), len(seen_test), len(draw.labelled), len(draw.pool)) == (4277, 4276, 312, 30_826)
    assert np.isin(labels[draw.pool], task.unseen).sum() == 18_495
    assert parts.validation.tolist() == naive["validation"]
    assert seen_test.tolist() == naive["test"]
    assert draw.labelled.tolist() == naive["labelled"]
    assert draw.pool.tolist() == naive["pool"]


def test_only_the_order_of_the_fixed_pool_depends_on_the_run_seed() -> None:
    labels = make_labels((300, 250, 200, 150, 100))
    task = Task(*SWAPPED, 10, 600, 60)
    (first_parts, first), (second_parts, second) = (fixed_split(labels, task, 42, seed) for seed in (1, 2))
    np.testing.assert_array_equal(first_parts.validation, second_parts.validation)
    np.testing.assert_array_equal(first.labelled, second.labelled)
    np.testing.assert_array_equal(np.sort(first.pool), np.sort(second.pool))
    assert first.pool.tolist() != second.pool.tolist()


def test_unseen_records_that_the_fixed_pool_leaves_over_are_held_out() -> None:
    labels = make_labels((300, 250, 200, 150, 100))
    parts, draw = fixed_split(labels, Task(*SWAPPED, 10, 600, 60), 42, 1)
    sides = [set(parts.train.tolist()), set(parts.validation.tolist()), set(parts.test.tolist())]
    assert sum(map(len, sides)) == len(set.union(*sides)) == 1000
    assert not set(draw.pool.tolist()) & (sides[1] | sides[2])
    assert np.isin(labels[parts.test], ("NORM", "ST")).sum() == 300 + 150 - 360


def test_a_small_fixed_pool_is_filled_with_repeats() -> None:
    labels = make_labels((40, 60, 60, 40, 60))
    _, draw = fixed_split(labels, Task(*SWAPPED, 10, 400, 60), 42, 1)
    assert len(draw.pool) == 400
    assert np.isin(labels[draw.pool], ("NORM", "ST")).sum() == 240


def test_strata_are_drawn_by_name() -> None:
    """Classes renamed so that their alphabetical order changes give another split."""
    labels = make_labels((100,) * 5)
    renamed: NDArray[np.str_] = np.char.replace(labels, "NORM", "ANORM")
    assert random_parts(labels, 42).test.tolist() != random_parts(renamed, 42).test.tolist()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 99), patients=st.integers(40, 150))
def test_patients_stay_together_and_classes_keep_their_shares(seed: int, patients: int) -> None:
    labels = make_labels((100, 80, 60, 40, 30), seed)
    owners = np.array([f"p{n}" for n in np.random.default_rng(seed).integers(0, patients, len(labels))])
    owners[::10] = ""
    parts = patient_parts(labels, owners, seed)
    sides = [parts.train, parts.validation, parts.test]
    assert np.sort(np.concatenate(sides)).tolist() == list(range(len(labels)))
    owned = [set(owners[side]) - {""} for side in sides]
    assert not (owned[0] & owned[1] or owned[0] & owned[2] or owned[1] & owned[2])
    assert abs(len(parts.train) / len(labels) - 0.8) < 0.05
    assert patient_parts(labels, owners, seed).test.tolist() == parts.test.tolist()


def test_folds() -> None:
    folds = np.array([str(n % 10 + 1) for n in range(40)])
    parts = fold_parts(folds)
    assert set(folds[parts.train]) == set("12345678")
    assert (set(folds[parts.validation]), set(folds[parts.test])) == ({"9"}, {"10"})
    folds[3] = ""
    with pytest.raises(UserError, match="needs a fold from 1 to 10 for every record, but one has ''"):
        fold_parts(folds)


def test_too_few_records_are_said_with_their_class() -> None:
    labels = make_labels((30, 30, 12, 30, 30))
    train = np.arange(len(labels))
    task = Task(("NORM", "RHY", "CD"), ("ST", "OTHER"), 13, 40, 30)
    with pytest.raises(UserError, match="Class CD has 12 training records, but labels_per_class is 13"):
        fixed_volume(train, labels, task, 1)
    with pytest.raises(UserError, match="Class CD has 3 records, but a split 8:1:1 needs at least 10"):
        random_parts(make_labels((30, 30, 3, 30, 30)), 42)
    every = Task(("NORM", "RHY"), ("ST",), 30, 40, 30)
    with pytest.raises(UserError, match="needs 28 seen records, but none is left"):
        fixed_volume(train, labels, every, 1)
