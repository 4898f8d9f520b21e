"""Cells that are not here, as an earlier report has them.

A study may take many days and several machines. Its predictions stay where they were made, its report goes with the
repository: what that says of a cell of the same params and data (`config_hash`) is what `evaluate` would say again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from safeecgmatch.cells import Cell
from safeecgmatch.reporting.stored import KEY
from safeecgmatch.reporting.study import FRAMES as COLUMNS
from safeecgmatch.reporting.study import read_frame

Frames = dict[str, pd.DataFrame]

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


class Earlier(NamedTuple):
    """What a report says of a cell: its line of runs.csv, and its lines of everything else, by name."""

    run: dict[Any, Any]
    frames: Frames


NOTHING: Mapping[str, Earlier] = {}


def file_of(folder: Path, name: str) -> Path:
    if name in ("metrics", "draws"):
        return folder / f"{name}.csv{'.gz' if name == 'draws' else ''}"
    return folder / "plots" / f"{name}.csv"


def reported(folder: Path, wanted: list[Cell], hash_of: Callable[[Cell], str]) -> dict[str, str]:
    """The cells `wanted` of which the report in `folder` has the same params and data, with their hash; none where
    there is no report, or one of another format."""
    if not all(file_of(folder, name).is_file() for name in FRAMES):
        return {}
    runs = read_frame(folder / "runs.csv", COLUMNS["runs"])
    known = runs[runs["state"] != "missing"].set_index("cell")["config_hash"].to_dict()
    return {cell.path: known[cell.path] for cell in wanted if cell.path in known and hash_of(cell) == known[cell.path]}


def read_earlier(folder: Path, wanted: list[Cell], hash_of: Callable[[Cell], str]) -> dict[str, Earlier]:
    """What the report in `folder` says of these cells, by their paths."""
    same = reported(folder, wanted, hash_of)
    if not same:
        return {}
    runs, metrics = (read_frame(folder / f"{name}.csv", COLUMNS[name]) for name in ("runs", "metrics"))
    found = {path: Earlier(dict(runs[runs["cell"] == path].iloc[0].items()), {}) for path in same}
    named = [*KEY, "config_hash"]  # a row that was derived from a cell has its hash
    owners = pd.concat([runs[named], metrics[named]]).drop_duplicates()
    paths = {config_hash: path for path, config_hash in same.items()}
    owners = owners.assign(path=owners["config_hash"].map(paths)).dropna(subset="path").drop(columns="config_hash")
    for name in FRAMES:
        frame = metrics if name == "metrics" else read_frame(file_of(folder, name), KEY)
        if not frame.empty:
            of_cell = frame[KEY].assign(row=frame["row"].str.split("@").str[0]).merge(owners, on=KEY, how="left")
            for path, lines in frame.groupby(of_cell["path"].to_numpy()):
                found[str(path)].frames[name] = lines
    return found
