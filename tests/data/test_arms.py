"""Arms are the 60 % setting with another pool or validation set, and nothing else changed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from safeecgmatch.data.split_draws import few_of_each
from safeecgmatch.data.splits import make_split
from tests.data.tiny import make_store

COMMON = {
    "ood": 60,
    "strategy": "random",
    "labels_per_class": 8,
    "pool_size": 100,
    "switches": {"cinc60": "same_classes"},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory):
    labels = ["NORM"] * 900 + ["MI", "CD", "STTC", "HYP"] * 100
    return make_store(tmp_path_factory.mktemp("store") / "ptbxl", "ptbxl", labels)


def split(store, arm: str = "", seed: int = 4, split_seed: int = 42):
    return make_split(store, arm=arm, seed=seed, split_seed=split_seed, **COMMON)


def test_seen_pool_is_the_pool_without_its_unseen_records(store) -> None:
    full, arm = split(store), split(store, "seen_pool")
    assert arm.pool.tolist() == full.pool[full.pool_label < 3].tolist(), "in the same order"
    assert len(arm.pool) == 40 and arm.summary["pool_unseen"] == 0 and arm.summary["arm"] == "seen_pool"
    for part in ("labelled", "validation", "test", "open_test"):
        assert getattr(arm, part).tolist() == getattr(full, part).tolist()


def test_val150_leaves_few_validation_records_of_each_class(store) -> None:
    full, arm = split(store), split(store, "val150")
    counts = Counter(full.validation_label.tolist())
    assert Counter(arm.validation_label.tolist()) == {k: min(count, 50) for k, count in counts.items()}
    assert set(arm.validation.tolist()) <= set(full.validation.tolist())
    for part in ("labelled", "pool", "test", "open_test"):
        assert getattr(arm, part).tolist() == getattr(full, part).tolist()


def test_few_of_each_draws_by_its_generator_and_keeps_the_order() -> None:
    rows, labels = np.arange(300), np.array(["A", "B", "C"] * 100)
    drawn = [few_of_each(rows, labels, ("A", "B"), 20, np.random.RandomState(seed)) for seed in (1, 1, 2)]
    assert Counter(labels[drawn[0]].tolist()) == {"A": 20, "B": 20}
    assert drawn[0].tolist() == sorted(drawn[0].tolist()) == drawn[1].tolist() != drawn[2].tolist()


def test_parts_follow_the_seed_that_draws_them(store) -> None:
    """`split.seed: run` gives each run's seed here: other test records, as many of each class."""
    fixed, run4, run5 = split(store), split(store, split_seed=4), split(store, seed=5, split_seed=5)
    assert run4.summary["split_seed"] == 4
    assert set(run4.open_test.tolist()) not in (set(fixed.open_test.tolist()), set(run5.open_test.tolist()))
    assert Counter(run4.open_test_label.tolist()) == Counter(run5.open_test_label.tolist())
