"""What is known of a cell: what it left on disk, read and checked, or what an earlier report says of it.

A study may take many days and several machines. Its predictions stay where they were made, its report goes with the
repository: what that says of a cell of the same params and data (`config_hash`) is what `evaluate` would say again.
"""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from safeecgmatch.cells import Cell
from safeecgmatch.config import Params
from safeecgmatch.engine.fingerprint import resolve
from safeecgmatch.errors import UserError
from safeecgmatch.files import read_json, read_yaml
from safeecgmatch.predictions import read_arrays
from safeecgmatch.reporting.study import FRAMES, read_frame

KEY = ["dataset", "row", "ood", "seed"]  # of every line about a cell; behind an @ a row may name a branch
IDENTITY = ["dataset", "method", "ood", "seed", "lambda_sum", "variant", "arm"]


@dataclass(frozen=True)
class StoredCell:
    """What a finished cell left on disk; a cell that diverged has no predictions, and says why."""

    cell: Cell
    config: dict[str, Any]
    summary: dict[str, Any]
    predictions: Mapping[str, np.ndarray]
    trajectory: Mapping[str, np.ndarray]
    history: pd.DataFrame
    tracking: dict[str, Any]

    @property
    def identity(self) -> dict[str, Any]:
        """Dataset ... variant as the run's own config states them: the tables select by these values."""
        return {key: self.config["cell"][key] for key in IDENTITY}

    @property
    def diverged(self) -> str | None:
        """The sentence that says why there are no predictions."""
        return self.summary.get("diverged") or None

    @property
    def counted(self) -> bool:
        """Where only a student that beats the supervised phase is tested, a seed without one has no result."""
        tested_only_if_better = self.config.get("switches", {}).get("selection_includes_pretrain", False)
        return not (tested_only_if_better and self.summary.get("no_competitor", False))


Judge = Callable[[Cell, Any], str]
COMPARED = ("protocol", "cell", "module", "model", "train", "hyper", "switches", "data")


def wanted_config(params: Params, data: Path) -> Callable[[Cell], dict[str, Any]]:
    """The config of a cell of params.yaml; empty where its data are not here: no split of it was made yet."""

    def config_of(cell: Cell) -> dict[str, Any]:
        try:
            return resolve(params, cell, data)
        except UserError:
            return {}

    return config_of


def asked_for(params: Params, data: Path) -> Judge:
    """Tells of a stored config why it is not what params.yaml asks for, "" if it is: by params and data.

    Other code is allowed, for a study goes on while reports are improved; runs.csv names the commit of each cell. A
    profile is only a name. The content counts, not the hash that it states: a file may be cut or edited.
    """
    config_of = wanted_config(params, data)

    def judge(cell: Cell, config: Any) -> str:
        if not isinstance(config, dict):
            return "a damaged config.yaml"
        wanted = config_of(cell)
        if not wanted:
            return "data that are not here"
        other = [key for key in COMPARED if config.get(key) != wanted[key]]
        return f"other {', '.join(other)}" if other else ""

    return judge


def wanted_hash(params: Params, data: Path) -> Callable[[Cell], str]:
    """The `config_hash` that a cell of params.yaml has, "" where its data are not here."""
    config_of = wanted_config(params, data)
    return lambda cell: str(config_of(cell).get("config_hash", ""))


def sentence(passed_over: Sequence[str]) -> str:
    """How many stored cells are not those that params.yaml asks for, and why; nothing where there are none."""
    counts = [f"{count} of {reason}" for reason, count in Counter(passed_over).most_common()]
    text = f" {len(passed_over)} stored cells were passed over as not those of params.yaml: {'; '.join(counts)}."
    return text if passed_over else ""


def load_cell(
    cell: Cell, runs: Path, tracking: Path, waiting: Path | None = None, judge: Judge = lambda cell, config: ""
) -> tuple[StoredCell | None, str]:
    """The stored cell, or None where there is none, or `judge` has a reason against it; a half one is an error.

    `waiting` is the result of a cell that is trained and not yet taken over by DVC.
    """
    folder = waiting / "run" if waiting else runs / cell.path
    run_file = (waiting or tracking / cell.path) / "run.json"
    if not folder.is_dir():
        return None, ""
    again = f"run `dvc repro {cell.stage}`"
    try:
        config = read_yaml(folder / "config.yaml")
        if not isinstance(config, dict):
            raise ValueError("config.yaml holds no config")
        if reason := judge(cell, config):
            return None, reason
        tracked = read_json(run_file) if run_file.is_file() else {}
        summary = read_json(folder / "summary.json")
        history = pd.read_csv(folder / "history.csv")
        predictions = {} if summary.get("diverged") else _read_arrays(folder / "predictions.npz")
        trajectory = {} if summary.get("diverged") else read_arrays(folder / "trajectory.npz")
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, UserError) as error:
        raise UserError(f"{folder} is incomplete ({type(error).__name__}: {error}); {again}.") from error
    broken = [key for key, array in predictions.items() if ".log_probs." in key and np.isnan(array).any()]
    if broken:
        raise UserError(f"{folder}/predictions.npz has NaN in '{broken[0]}'; {again}.")
    return StoredCell(cell, config, summary, predictions, trajectory, history, tracked), ""


def _read_arrays(file: Path) -> dict[str, np.ndarray]:
    """The arrays that metrics need; raw head outputs stay on disk."""
    with np.load(file, allow_pickle=False) as stored:
        wanted = (".record", ".label", ".log_probs.", ".ood_score.")
        return {key: stored[key] for key in stored if key == "branch" or any(part in key for part in wanted)}


Frames = dict[str, pd.DataFrame]

# Of every cell, by name; those behind the first two are files of plots/.
CELL_FRAMES = ("metrics", "draws", "budget", "training", "reliability", "roc", "refusal", "confusion", "sources")


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
    if not all(file_of(folder, name).is_file() for name in CELL_FRAMES):
        return {}
    runs = read_frame(folder / "runs.csv", FRAMES["runs"])
    known = runs[runs["state"] != "missing"].set_index("cell")["config_hash"].to_dict()
    return {cell.path: known[cell.path] for cell in wanted if cell.path in known and hash_of(cell) == known[cell.path]}


def read_earlier(folder: Path, wanted: list[Cell], hash_of: Callable[[Cell], str]) -> dict[str, Earlier]:
    """What the report in `folder` says of these cells, by their paths."""
    same = reported(folder, wanted, hash_of)
    if not same:
        return {}
    runs, metrics = (read_frame(folder / f"{name}.csv", FRAMES[name]) for name in ("runs", "metrics"))
    found = {path: Earlier(dict(runs[runs["cell"] == path].iloc[0].items()), {}) for path in same}
    named = [*KEY, "config_hash"]  # a row that was derived from a cell has its hash
    owners = pd.concat([runs[named], metrics[named]]).drop_duplicates()
    paths = {config_hash: path for path, config_hash in same.items()}
    owners = owners.assign(path=owners["config_hash"].map(paths)).dropna(subset="path").drop(columns="config_hash")
    for name in CELL_FRAMES:
        frame = metrics if name == "metrics" else read_frame(file_of(folder, name), KEY)
        if not frame.empty:
            of_cell = frame[KEY].assign(row=frame["row"].str.split("@").str[0]).merge(owners, on=KEY, how="left")
            for path, lines in frame.groupby(of_cell["path"].to_numpy()):
                found[str(path)].frames[name] = lines
    return found
