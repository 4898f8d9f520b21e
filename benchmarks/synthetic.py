"""A signal store of noise and a split over it, of any size: enough to time training, useless to learn from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from safeecgmatch.cells import Cell
from safeecgmatch.config import PROPOSED, Params, validate
from safeecgmatch.data.datasets.ptbxl import SEEN, UNSEEN
from safeecgmatch.data.splits import write_split
from safeecgmatch.engine.assembly import Inputs, build
from safeecgmatch.engine.fingerprint import resolve
from safeecgmatch.engine.loop import Training
from safeecgmatch.engine.signal_store import FORMAT, SIGNALS, TABLE, Entry, write_table
from safeecgmatch.engine.split_files import Split
from safeecgmatch.files import write_json
from safeecgmatch.leads import LEADS, SECONDS
from safeecgmatch.profiles import compose_values

ROOT = Path(__file__).resolve().parents[1]
LABELLED, HELD_OUT = 150, 128


def write_store(data: Path, records: int, sampling_rate: int) -> None:
    """`records` rows that repeat one block of noise, written in chunks so that memory stays flat."""
    folder = data / "filtered" / "ptbxl"
    folder.mkdir(parents=True)
    samples = SECONDS * sampling_rate
    block = np.random.default_rng(0).normal(0, 300, (256, len(LEADS), samples)).astype(np.int16)
    signals = np.lib.format.open_memmap(
        folder / SIGNALS, mode="w+", dtype=np.int16, shape=(records, len(LEADS), samples)
    )
    for start in range(0, records, len(block)):
        signals[start : start + len(block)] = block[: records - start]
    signals.flush()
    names = (*SEEN, *UNSEEN)
    write_table(folder / TABLE, [Entry(str(i), "", names[i % 5], "noise", "", samples) for i in range(records)])
    form = {"dataset": "ptbxl", "sampling_rate": sampling_rate, "samples": samples}
    write_json(folder / FORMAT, form | {"standardise": False, "preprocessing": "none"})


def write_rows(data: Path, records: int) -> None:
    """Labelled, validation and test rows first, all the others in the pool."""
    rows = np.arange(records)
    parts = {
        "labelled": rows[:LABELLED],
        "validation": rows[LABELLED : LABELLED + HELD_OUT],
        "test": rows[LABELLED : LABELLED + HELD_OUT],
        "open_test": rows[LABELLED : LABELLED + HELD_OUT],
        "pool": rows[LABELLED + HELD_OUT :],
    }
    arrays = dict(parts)
    for name, part in parts.items():
        arrays[f"{name}_label"] = part % (4 if name == "pool" else 3)
    summary = {"seen": list(SEEN), "unseen": list(UNSEEN)}
    split = Split(seen=SEEN, unseen=UNSEEN, summary=summary, **arrays)
    write_split(split, data / "splits" / "ptbxl" / "60" / "1")


def make_training(data: Path, method: str, width: int, **train: object) -> Training:
    """A cell of the paper's profile on the synthetic store, with other train settings."""
    content = compose_values("paper", ROOT / "profiles")
    content["model"]["width"] = width
    content["train"] |= {"device": "cpu", **train}
    params = validate(Params, content, "benchmark")
    cell = Cell("ptbxl", method, 60, 1, "full", 1.0 if method == PROPOSED else None)
    inputs = Inputs.open(cell, data)
    training, _ = build(resolve(params, cell, data), inputs)
    return training
