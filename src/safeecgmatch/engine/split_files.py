"""Which rows of a signal store a cell reads, as its split wrote them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from safeecgmatch.errors import UserError
from safeecgmatch.files import read_json

Rows = NDArray[np.int64]

SPLIT, SUMMARY = "split.npz", "summary.json"

PARTS = ("labelled", "pool", "validation", "test", "open_test")


@dataclass(frozen=True)
class Split:
    """Rows of the signal store and their labels (0..K-1 in the order of `seen`, K for every unseen class)."""

    seen: tuple[str, ...]
    unseen: tuple[str, ...]
    labelled: Rows
    labelled_label: Rows
    pool: Rows
    pool_label: Rows
    validation: Rows
    validation_label: Rows
    test: Rows
    test_label: Rows
    open_test: Rows
    open_test_label: Rows
    summary: dict[str, Any]

    @property
    def num_classes(self) -> int:
        return len(self.seen)


def load_split(folder: Path) -> Split:
    for name in (SPLIT, SUMMARY):
        if not (folder / name).is_file():
            raise UserError(
                f"{folder / name} is missing: run the split stage of this dataset, OOD level and seed first."
            )
    summary = read_json(folder / SUMMARY)
    try:
        with np.load(folder / SPLIT, allow_pickle=False) as archive:
            arrays = {name: archive[name] for part in PARTS for name in (part, f"{part}_label")}
    except (BadZipFile, EOFError, KeyError, OSError, TypeError, ValueError) as error:
        raise UserError(f"{folder / SPLIT} is damaged ({error}): run its split stage again.") from error
    return Split(seen=tuple(summary["seen"]), unseen=tuple(summary["unseen"]), summary=summary, **arrays)
