from __future__ import annotations

import hashlib
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from safeecgmatch.data.datasets import ptbxl
from safeecgmatch.data.readers import Archive
from safeecgmatch.data.split_draws import few_of_each, random_parts
from safeecgmatch.data.splits import make_split, write_split
from safeecgmatch.engine.signal_store import SignalStore
from safeecgmatch.engine.split_files import PARTS, Split, load_split
from safeecgmatch.errors import UserError
from safeecgmatch.files import sha256_of
from tests.data.tiny import make_store

SMALL: dict[str, Any] = {
    "ood": 30, "seed": 1, "split_seed": 42, "strategy": "random", "labels_per_class": 5, "pool_size": 60,
    "switches": {"cinc60": "same_classes"},
}  # fmt: skip


@pytest.fixture
def cinc(tmp_path: Path) -> SignalStore:
    return make_store(tmp_path / "cinc21", "cinc21", ["NORM", "RHY", "CD", "ST", "OTHER"] * 40)


@pytest.fixture
def ptb(tmp_path: Path) -> SignalStore:
    labels = ["NORM", "MI", "CD", "STTC", "HYP"] * 40
    patients = [str(row // 3) for row in range(200)]
    return make_store(tmp_path / "ptbxl", "ptbxl", labels, patients, [str(row // 3 % 10 + 1) for row in range(200)])


def test_labels_are_numbered_in_seen_order_and_unseen_is_k(ptb: SignalStore) -> None:
    split = make_split(ptb, **SMALL)
    number = {"NORM": 0, "MI": 1, "CD": 2, "STTC": 3, "HYP": 3}
    for part in PARTS:
        rows, labels = getattr(split, part), getattr(split, f"{part}_label")
        assert rows.dtype == labels.dtype == np.int64
        assert labels.tolist() == [number[name] for name in ptb.labels[rows]]
    assert (split.seen, split.unseen, split.num_classes) == (("NORM", "MI", "CD"), ("STTC", "HYP"), 3)
    assert set(split.validation_label) == set(split.test_label) == {0, 1, 2}
    assert set(split.open_test_label) == {0, 1, 2, 3}


def test_validation_and_test_are_the_seen_part_in_the_same_order(ptb: SignalStore) -> None:
    split = make_split(ptb, **SMALL)
    assert split.test.tolist() == split.open_test[split.open_test_label < 3].tolist()


def test_a_split_states_from_which_records_it_was_drawn(ptb: SignalStore) -> None:
    """DVC's cells depend on their records through it alone, so each byte of both files counts, drawn or not."""
    before = make_split(ptb, **SMALL).summary["drawn_from"]
    assert before == {name: sha256_of(ptb.folder / name) for name in ("store.json", "records.csv")}
    for name in before:
        with (ptb.folder / name).open("a") as stream:
            stream.write(" ")
        after = make_split(ptb, **SMALL).summary["drawn_from"]
        assert [key for key in before if after[key] != before[key]] == [name]
        before = after


def test_a_pool_of_repeats_is_warned_of(ptb: SignalStore) -> None:
    """81 seen and 64 unseen rows are left to draw from."""
    distinct = 3 * 32 - 15 + 64
    for size, warned in ((60, False), (2 * distinct, False), (2 * distinct + 2, True), (30_826, True)):
        summary = make_split(ptb, **SMALL | {"ood": 45, "pool_size": size}).summary
        repeats = summary["pool_duplicates"]
        assert (repeats > size / 2) == warned == ("warnings" in summary), (size, repeats)
    assert summary["warnings"] == [
        f"{30_826 - distinct:,} of the pool's 30,826 records are repeats of the other {distinct}: "
        "lower pool_size in params.yaml or use a larger archive."
    ]


@pytest.mark.parametrize("strategy", ["random", "patient", "strat_fold"])
def test_training_rows_are_never_held_out(ptb: SignalStore, strategy: str) -> None:
    split = make_split(ptb, **SMALL | {"strategy": strategy})
    training = {*split.labelled.tolist(), *split.pool.tolist()}
    assert not training & {*split.validation.tolist(), *split.open_test.tolist()}
    assert not {*split.labelled.tolist()} & {*split.pool.tolist()}
    assert (split.summary["patients_straddling"] == 0) == (strategy != "random")


def test_the_labelled_set_is_one_for_all_levels(ptb: SignalStore) -> None:
    low, high = (make_split(ptb, **SMALL | {"ood": ood}) for ood in (30, 60))
    assert low.labelled.tolist() == high.labelled.tolist()
    assert low.test.tolist() == high.test.tolist()
    assert make_split(ptb, **SMALL | {"seed": 2}).labelled.tolist() != low.labelled.tolist()


def test_summary(ptb: SignalStore) -> None:
    summary = make_split(ptb, **SMALL | {"ood": 60, "pool_size": 200}).summary
    assert summary["sizes"] == {"labelled": 15, "pool": 200, "validation": 12, "test": 12, "open_test": 20}
    assert summary["parts"] == {"train": 160, "validation": 20, "test": 20}
    assert summary["class_counts"]["labelled"] == {"NORM": 5, "MI": 5, "CD": 5}
    assert (summary["pool_unseen"], summary["pool_unseen_distinct"], summary["pool_unseen_share"]) == (120, 64, 0.6)
    assert (summary["pool_distinct"], summary["pool_duplicates"]) == (80 + 64, 56)
    assert (summary["patients"], summary["records_without_patient"]) == (67, 0)
    assert (summary["seed"], summary["split_seed"], summary["strategy"]) == (1, 42, "random")


@pytest.mark.parametrize(
    ("ood", "cinc60", "rule", "seen"),
    [
        (30, "same_classes", "fixed_volume", ("NORM", "RHY", "CD")),
        (60, "same_classes", "fixed_volume", ("NORM", "RHY", "CD")),
        (30, "swapped_fixed", "all_unseen", ("NORM", "RHY", "CD")),
        (60, "swapped_fixed", "fixed_split", ("RHY", "CD", "OTHER")),
    ],
)
def test_the_protocols_of_cinc(cinc: SignalStore, ood: int, cinc60: str, rule: str, seen: tuple[str, ...]) -> None:
    split = make_split(cinc, **SMALL | {"ood": ood, "switches": {"cinc60": cinc60}})
    assert (split.summary["rule"], split.seen) == (rule, seen)
    assert (split.open_test_label == 3).any()
    assert (split.test_label < 3).all()


def test_the_switch_of_cinc_leaves_ptbxl_alone(ptb: SignalStore) -> None:
    split = make_split(ptb, **SMALL | {"ood": 60, "switches": {"cinc60": "swapped_fixed"}})
    assert (split.summary["rule"], split.seen) == ("fixed_volume", ("NORM", "MI", "CD"))


def test_what_does_not_go_together_is_said(cinc: SignalStore, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="strategy patient does not go with the release's fixed split"):
        make_split(cinc, **SMALL | {"ood": 60, "switches": {"cinc60": "swapped_fixed"}, "strategy": "patient"})
    with pytest.raises(UserError, match="only PTB-XL has folds"):
        make_split(cinc, **SMALL | {"strategy": "strat_fold"})
    with pytest.raises(UserError, match="cinc60 is 'maybe': it must be one of same_classes, swapped_fixed"):
        make_split(cinc, **SMALL | {"switches": {"cinc60": "maybe"}})
    with pytest.raises(UserError, match="has no record of class OTHER"):
        make_split(make_store(tmp_path / "few", "cinc21", ["NORM", "RHY", "CD", "ST"] * 20), **SMALL)


def test_a_split_survives_a_round_trip_with_the_same_bytes(ptb: SignalStore, tmp_path: Path) -> None:
    split = make_split(ptb, **SMALL)
    digests = []
    for name in ("a", "b"):
        write_split(split, tmp_path / name)
        digests.append([hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted((tmp_path / name).iterdir())])
    assert digests[0] == digests[1]
    loaded = load_split(tmp_path / "a")
    assert (loaded.seen, loaded.unseen, loaded.summary) == (split.seen, split.unseen, split.summary)
    for part in PARTS:
        np.testing.assert_array_equal(getattr(loaded, part), getattr(split, part))
        np.testing.assert_array_equal(getattr(loaded, f"{part}_label"), getattr(split, f"{part}_label"))


@pytest.mark.parametrize("name", ["split.npz", "summary.json"])
def test_a_missing_file_is_named(ptb: SignalStore, tmp_path: Path, name: str) -> None:
    write_split(make_split(ptb, **SMALL), tmp_path / "a")
    (tmp_path / "a" / name).unlink()
    with pytest.raises(UserError, match=re.escape(f"{name} is missing: run the split stage")):
        load_split(tmp_path / "a")


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 cut", b"text"])
def test_a_damaged_file_is_named(ptb: SignalStore, tmp_path: Path, damage: bytes) -> None:
    write_split(make_split(ptb, **SMALL), tmp_path / "a")
    (tmp_path / "a" / "split.npz").write_bytes(damage)
    with pytest.raises(UserError, match=r"split\.npz is damaged"):
        load_split(tmp_path / "a")


def test_a_file_without_all_arrays_or_with_objects_is_refused(ptb: SignalStore, tmp_path: Path) -> None:
    split = make_split(ptb, **SMALL)
    write_split(split, tmp_path / "a")
    np.savez(tmp_path / "a" / "split.npz", labelled=split.labelled)
    with pytest.raises(UserError, match=r"split\.npz is damaged"):
        load_split(tmp_path / "a")
    np.savez(tmp_path / "a" / "split.npz", labelled=np.array([{}], dtype=object))
    with pytest.raises(UserError, match=r"split\.npz is damaged"):
        load_split(tmp_path / "a")


@pytest.fixture
def many(tmp_path: Path) -> SignalStore:
    labels = ["NORM"] * 900 + ["MI", "CD", "STTC", "HYP"] * 100
    return make_store(tmp_path / "many", "ptbxl", labels)


@pytest.mark.parametrize("arm", ["seen_pool", "val150"])
def test_an_arm_has_another_pool_or_validation_set_and_nothing_else_changed(many: SignalStore, arm: str) -> None:
    full, other = (make_split(many, **SMALL | {"ood": 60, "pool_size": 100, "arm": name}) for name in ("", arm))
    wanted = {part: getattr(full, part).tolist() for part in PARTS}
    if arm == "seen_pool":
        wanted["pool"] = full.pool[full.pool_label < 3].tolist()
        assert len(other.pool) == 40 and other.summary["pool_unseen"] == 0
    else:
        counts = Counter(full.validation_label.tolist())
        assert Counter(other.validation_label.tolist()) == {k: min(count, 50) for k, count in counts.items()}
        assert set(other.validation.tolist()) <= set(wanted.pop("validation"))
    assert {part: getattr(other, part).tolist() for part in wanted} == wanted and other.summary["arm"] == arm


def test_few_of_each_draws_by_its_generator_and_keeps_the_order() -> None:
    rows, labels = np.arange(300), np.array(["A", "B", "C"] * 100)
    drawn = [few_of_each(rows, labels, ("A", "B"), 20, np.random.RandomState(seed)) for seed in (1, 1, 2)]
    assert Counter(labels[drawn[0]].tolist()) == {"A": 20, "B": 20}
    assert drawn[0].tolist() == sorted(drawn[0].tolist()) == drawn[1].tolist() != drawn[2].tolist()


def test_parts_follow_the_seed_that_draws_them(many: SignalStore) -> None:
    """`split.seed: run` gives each run's seed here: other test records, as many of each class."""
    fixed, run4, run5 = (make_split(many, **SMALL | {"seed": 4, "split_seed": seed}) for seed in (42, 4, 5))
    assert run4.summary["split_seed"] == 4
    assert set(run4.open_test.tolist()) not in (set(fixed.open_test.tolist()), set(run5.open_test.tolist()))
    assert Counter(run4.open_test_label.tolist()) == Counter(run5.open_test_label.tolist())


@pytest.fixture(scope="session")
def real_ptbxl(material: Path, tmp_path_factory: pytest.TempPathFactory) -> SignalStore:
    """The rows of the real table with made-up signals: a split depends on the table alone."""
    chosen = ptbxl.select(Archive(material / "data" / "ptbxl"), 100).candidates
    columns = ([c.label for c in chosen], [c.patient for c in chosen], [c.fold for c in chosen])
    return make_store(tmp_path_factory.mktemp("real") / "ptbxl", "ptbxl", *columns)


def real_split(store: SignalStore, **changes: Any) -> Split:
    return make_split(store, **SMALL | {"labels_per_class": 50, "pool_size": 14_850} | changes)


@pytest.mark.real
def test_sizes_of_the_real_split(real_ptbxl: SignalStore) -> None:
    summary = real_split(real_ptbxl).summary
    assert summary["parts"] == {"train": 12_995, "validation": 1_624, "test": 1_625}
    assert summary["parts_class_counts"]["train"] == {"NORM": 7255, "MI": 2026, "CD": 1366, "STTC": 1920, "HYP": 428}
    assert summary["sizes"] == {
        "labelled": 150, "pool": 14_850, "validation": 1_331, "test": 1_331, "open_test": 1_625,
    }  # fmt: skip
    assert summary["class_counts"]["test"] == {"NORM": 907, "MI": 253, "CD": 171}
    assert (summary["patients"], summary["patients_straddling"]) == (14_627, 442)


@pytest.mark.real
@pytest.mark.parametrize(
    ("ood", "seed", "labelled", "pool", "unseen", "distinct", "copies"),
    [
        (30, 1, 1_332_856, 119_842_735, 4_455, 12_743, 6),
        (30, 2, 1_214_220, 120_308_869, 4_455, 12_743, 6),
        (30, 3, 1_339_359, 120_109_264, 4_455, 12_743, 7),
        (60, 1, 1_332_856, 120_407_532, 8_910, 8_288, 13),
        (60, 2, 1_214_220, 120_368_914, 8_910, 8_288, 12),
        (60, 3, 1_339_359, 120_516_818, 8_910, 8_288, 11),
    ],
)
def test_check_numbers_of_the_real_pools(
    real_ptbxl: SignalStore, ood: int, seed: int, labelled: int, pool: int, unseen: int, distinct: int, copies: int
) -> None:
    split = real_split(real_ptbxl, ood=ood, seed=seed)
    assert (split.labelled.sum(), split.pool.sum()) == (labelled, pool)
    found = [split.summary[key] for key in ("pool_unseen", "pool_unseen_distinct", "pool_distinct", "pool_most_copies")]
    assert found == [unseen, 2_348, distinct, copies]
    assert split.summary["pool_duplicates"] == 14_850 - distinct
    assert split.open_test[:3].tolist() == [6547, 14309, 6752]


@pytest.mark.real
def test_first_rows_of_the_real_parts(real_ptbxl: SignalStore) -> None:
    parts = random_parts(real_ptbxl.labels, 42)
    assert parts.train[:3].tolist() == [13963, 13530, 8122]
    assert parts.validation[:3].tolist() == [4669, 13844, 1190]
    assert parts.test[:3].tolist() == [6547, 14309, 6752]


@pytest.mark.real
@pytest.mark.parametrize("strategy", ["patient", "strat_fold"])
def test_no_real_patient_straddles(real_ptbxl: SignalStore, strategy: str) -> None:
    summary = real_split(real_ptbxl, strategy=strategy).summary
    assert summary["patients_straddling"] == 0
    assert sum(summary["parts"].values()) == 16_244
    if strategy == "strat_fold":
        assert summary["parts"] == {"train": 12_957, "validation": 1_637, "test": 1_650}
    else:
        assert all(abs(summary["parts"][name] - size) <= 3 for name, size in
                   (("train", 12_995), ("validation", 1_624), ("test", 1_625)))  # fmt: skip
