from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from safeecgmatch.engine.signal_store import Entry, SignalStore, read_table, write_table
from safeecgmatch.errors import UserError
from safeecgmatch.files import write_json

ENTRIES = [
    Entry(record=f"r{row}", patient="" if row == 1 else f"p{row}", label="NORM", source="s", fold="", length=7)
    for row in range(4)
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    signals = np.arange(4 * 12 * 7, dtype=np.int16).reshape(4, 12, 7)
    np.save(tmp_path / "signals.npy", signals)
    write_table(tmp_path / "records.csv", ENTRIES)
    form = {"dataset": "ptbxl", "sampling_rate": 100, "samples": 7, "standardise": True, "preprocessing": "none"}
    write_json(tmp_path / "store.json", form)
    return tmp_path


def test_gather_keeps_order_and_repeats_and_copies(folder: Path) -> None:
    store = SignalStore.open(folder)
    rows = np.array([2, 0, 2])
    batch = store.gather(rows)
    assert batch.dtype == np.int16
    assert not isinstance(batch, np.memmap)
    np.testing.assert_array_equal(batch, np.load(folder / "signals.npy")[rows])
    batch[:] = 0
    assert store.signals[2].any()
    with pytest.raises(ValueError, match="read-only"):
        store.signals[0, 0, 0] = 1


def test_attributes(folder: Path) -> None:
    store = SignalStore.open(folder)
    assert (len(store), store.sampling_rate, store.samples, store.standardise) == (4, 100, 7, True)
    assert list(store.records) == ["r0", "r1", "r2", "r3"]
    assert list(store.labels) == ["NORM"] * 4
    assert store.lengths.dtype == np.int64
    assert store.lengths.tolist() == [7] * 4


def test_table_survives_a_round_trip(tmp_path: Path) -> None:
    entries = [Entry('a,"b"', "", "CD", "g", "3", 1), Entry("b", "1.5", "CD", "g", "", 0)]
    write_table(tmp_path / "t.csv", entries)
    assert read_table(tmp_path / "t.csv") == entries


@pytest.mark.parametrize("name", ["signals.npy", "records.csv", "store.json"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(UserError, match=re.escape(f"{name} is missing: run the filter stage")):
        SignalStore.open(folder)


def test_a_shape_that_contradicts_the_table_is_refused(folder: Path) -> None:
    write_table(folder / "records.csv", ENTRIES[:3])
    with pytest.raises(UserError, match=r"holds int16 \(4, 12, 7\).*int16 \(3, 12, 7\)"):
        SignalStore.open(folder)


def test_a_pickle_in_place_of_the_signals_is_never_loaded(folder: Path) -> None:
    np.save(folder / "signals.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match=r"signals\.npy is damaged"):
        SignalStore.open(folder)


@pytest.mark.parametrize("content", [b"", b"text", b"\x93NUMPY\x01\x00"])
def test_damaged_signals_are_named(folder: Path, content: bytes) -> None:
    (folder / "signals.npy").write_bytes(content)
    with pytest.raises(UserError, match=r"signals\.npy is damaged"):
        SignalStore.open(folder)


def test_a_damaged_table_is_named_with_its_line(folder: Path) -> None:
    text = (folder / "records.csv").read_text()
    (folder / "records.csv").write_text(text.replace("2,r2", "9,r2"))
    with pytest.raises(UserError, match=r"records\.csv, line 4, is damaged"):
        SignalStore.open(folder)
