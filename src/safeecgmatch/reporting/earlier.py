"""Cells that are not here, as an earlier report has them.

A study may take many days and several machines. Its predictions stay where they were made, its report goes with the
repository: what that says of a cell of the same params and data (`config_hash`) is what `evaluate` would say again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from safeecgmatch.cells import Cell

Frames = dict[str, pd.DataFrame]

KEY = ["dataset", "row", "ood", "seed"]  # of every line; behind an @ a row may name a branch
# Of every cell, by name; those behind the first two are files of plots/.
FRAMES = ("metrics", "draws", "budget", "training", "reliability", "roc", "refusal", "confusion", "sources")


def begun_row(cell: Cell, state: str) -> dict[str, Any]:
    """How a line of runs.csv begins; state is done, diverged or missing."""
    names = {"row": cell.row, "role": cell.role}
    return {"cell": cell.path, "stage": cell.stage, **cell.describe(), **names, "state": state}


def joined(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """One below the other; an empty frame has columns, and no types that could change those of the others."""
    filled = [frame for frame in frames if not frame.empty]
    return pd.concat(filled, ignore_index=True) if filled else frames[0]


@dataclass(frozen=True)
class Earlier:
    """The lines of a report on cells whose params and data are those of params.yaml, by the cell's path."""

    runs: dict[str, dict[Any, Any]] = field(default_factory=dict)
    frames: dict[str, list[Frames]] = field(default_factory=dict)

    def run_of(self, cell: Cell) -> dict[Any, Any]:
        return self.runs.get(cell.path) or begun_row(cell, "missing")

    def frames_of(self, cell: Cell) -> list[Frames]:
        """One set, or two where the report derived another row from this cell."""
        return self.frames.get(cell.path, [])


NOTHING = Earlier()


def file_of(folder: Path, name: str) -> Path:
    if name in ("metrics", "draws"):
        return folder / f"{name}.csv{'.gz' if name == 'draws' else ''}"
    return folder / "plots" / f"{name}.csv"


def read_frame(file: Path) -> pd.DataFrame:
    return pd.read_csv(file)


def reported(folder: Path, wanted: list[Cell], hash_of: Callable[[Cell], str]) -> dict[str, Cell]:
    """Which of the cells `wanted` the report in `folder` has with the same params and data, by their hash; none where
    there is no report, or one of another format."""
    if not all(file_of(folder, name).is_file() for name in FRAMES):
        return {}
    runs = read_frame(folder / "runs.csv")
    known = runs[runs["state"] != "missing"].set_index("cell")["config_hash"].to_dict()
    return {known[cell.path]: cell for cell in wanted if cell.path in known and hash_of(cell) == known[cell.path]}


def read_earlier(folder: Path, wanted: list[Cell], hash_of: Callable[[Cell], str]) -> Earlier:
    """What the report in `folder` says of these cells."""
    same = reported(folder, wanted, hash_of)
    if not same:
        return NOTHING
    runs = read_frame(folder / "runs.csv").set_index("cell", drop=False)
    found = {cell.path: list[Frames]() for cell in same.values()}
    owners = {(cell.dataset, cell.row, cell.ood, cell.seed): cell.path for cell in same.values()}
    metrics = read_frame(file_of(folder, "metrics"))
    for dataset, row, ood, seed, config_hash in (
        metrics[[*KEY, "config_hash"]].drop_duplicates().itertuples(index=False)
    ):
        if config_hash in same:  # among them rows that were derived from a cell
            owners[dataset, row, ood, seed] = same[config_hash].path
    of_row: dict[Any, Frames] = {key: {} for key in owners}
    for name in FRAMES:
        frame = metrics if name == "metrics" else read_frame(file_of(folder, name))
        keys = [frame[column] for column in KEY]
        for name_of_row, lines in frame.groupby([keys[0], keys[1].str.split("@").str[0], *keys[2:]], sort=False):
            if name_of_row in of_row:
                of_row[name_of_row][name] = lines
    for key, path in owners.items():
        found[path].append(of_row[key])
    return Earlier({path: dict(runs.loc[path].items()) for path in found}, found)
