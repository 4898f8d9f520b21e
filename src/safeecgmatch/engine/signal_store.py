"""The filtered signals of one dataset: one int16 array, memory-mapped, and one table.

A folder `data/filtered/<dataset>` holds

* `signals.npy`: int16 microvolts, (N, 12, T), C order;
* `records.csv`: one line per row of it (`COLUMNS`);
* `store.json`: what the numbers mean (rate, length, preprocessing, whether a batch is to be standardised);
* `report.json`, `page.png`: for people.

This module is on the start-up path of every training process: numpy and the standard library only.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from safeecgmatch.errors import UserError
from safeecgmatch.files import read_json
from safeecgmatch.leads import LEADS

SIGNALS, TABLE, FORMAT, REPORT, PAGE = "signals.npy", "records.csv", "store.json", "report.json", "page.png"
COLUMNS = ("row", "record", "patient", "label", "source", "fold", "length")


@dataclass(frozen=True)
class Entry:
    """One line of `records.csv` but its row number; `length` counts the samples before zero-padding."""

    record: str
    patient: str
    label: str
    source: str
    fold: str
    length: int


def write_table(target: Path, entries: Sequence[Entry]) -> None:
    with target.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows((row, *astuple(entry)) for row, entry in enumerate(entries))


def read_table(source: Path) -> list[Entry]:
    with source.open(encoding="utf-8", newline="") as stream:
        reader = csv.reader(stream)
        if tuple(next(reader, ())) != COLUMNS:
            raise UserError(f"{source} has not the columns {', '.join(COLUMNS)}: run its filter stage again.")
        entries = []
        for row, line in enumerate(reader):
            if len(line) != len(COLUMNS) or line[0] != str(row) or not line[-1].isdigit():
                raise UserError(f"{source}, line {row + 2}, is damaged: run its filter stage again.")
            record, patient, label, origin, fold, length = line[1:]
            entries.append(Entry(record, patient, label, origin, fold, int(length)))
    return entries


class SignalStore:
    """Read-only view of a filtered dataset; rows are numbered as the splits number them."""

    def __init__(self, folder: Path, signals: np.memmap, entries: Sequence[Entry], form: dict[str, object]) -> None:
        self.folder = folder
        self.signals = signals
        self.entries = list(entries)
        self.records: NDArray[np.str_] = np.array([entry.record for entry in entries], dtype=np.str_)
        self.labels: NDArray[np.str_] = np.array([entry.label for entry in entries], dtype=np.str_)
        self.lengths: NDArray[np.int64] = np.array([entry.length for entry in entries], dtype=np.int64)
        self.dataset = str(form["dataset"])
        self.preprocessing = str(form["preprocessing"])
        self.sampling_rate = int(str(form["sampling_rate"]))
        self.samples = int(str(form["samples"]))
        self.standardise = form["standardise"] is True

    @classmethod
    def open(cls, folder: Path) -> SignalStore:
        missing = [name for name in (SIGNALS, TABLE, FORMAT) if not (folder / name).is_file()]
        if missing:
            raise UserError(f"{folder / missing[0]} is missing: run the filter stage of this dataset first.")
        form = read_json(folder / FORMAT)
        entries = read_table(folder / TABLE)
        try:
            signals = np.load(folder / SIGNALS, mmap_mode="r", allow_pickle=False)
        except (EOFError, ValueError) as error:
            raise UserError(f"{folder / SIGNALS} is damaged ({error}): run its filter stage again.") from error
        wanted = (len(entries), len(LEADS), form["samples"])
        if signals.dtype != np.int16 or signals.shape != wanted:
            raise UserError(
                f"{folder / SIGNALS} holds {signals.dtype} {signals.shape}, but its table and format say int16 "
                f"{wanted}: run its filter stage again."
            )
        return cls(folder, signals, entries, form)

    def __len__(self) -> int:
        return len(self.entries)

    def gather(self, rows: NDArray[np.integer]) -> NDArray[np.int16]:
        """The signals of these rows, in this order, as an array of their own: (len(rows), 12, T)."""
        return np.asarray(self.signals[rows])
