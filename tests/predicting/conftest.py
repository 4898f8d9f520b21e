"""Cells of a few iterations on the phantom, with the WFDB files that their records came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from safeecgmatch.cells import Cell
from safeecgmatch.engine.assembly import Inputs, build
from safeecgmatch.engine.fingerprint import resolve
from safeecgmatch.launching.outputs import write_outputs
from safeecgmatch.predicting.trained import Trained
from safeecgmatch.predictions import read_arrays
from tests.methods.harness import demo_params, phantom_store, split_data

SHORT = {"iterations": 4, "epoch": 2, "batch": 8}


@dataclass(frozen=True)
class Made:
    folder: Path  # of the cell
    archive: Path  # in the layout of its dataset

    def headers(self, part: str) -> list[Path]:
        """The files of a part's records, in its order."""
        records = read_arrays(self.folder / "predictions.npz")[f"{part}.record"].tolist()
        files = {file.stem.removesuffix("_lr"): file for file in self.archive.rglob("*.hea")}
        return [files[record.zfill(5) if record.isdigit() else record] for record in records]


def train_cell(
    data: Path, archive: Path, project: Path, name: str, protocol: str = "paper", dataset: str = "ptbxl", **train: Any
) -> Made:
    """A finished cell below `project`, from the store and the split in `data` that were made of `archive`."""
    cell = Cell(dataset, name, 60, 1, "full", 1.0 if name == "safeecgmatch" else None)
    inputs = Inputs.open(cell, data)
    config = resolve(demo_params(protocol, **train), cell, data)
    training, sets = build(config, inputs)
    training.run(lambda _: None, lambda _: None)
    folder = project / "runs" / cell.path
    write_outputs(folder, training, sets, config, inputs, generated=True)
    return Made(folder, archive)


@pytest.fixture(scope="session")
def make_cell(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Made]:
    def make(name: str, protocol: str = "paper") -> Made:
        data = split_data(phantom_store("ptbxl"), "ptbxl", 60, 1)
        project = tmp_path_factory.mktemp("project")
        return train_cell(data, data.parent / "raw" / "ptbxl", project, name, protocol, width=2, **SHORT)

    return make


@pytest.fixture(scope="session")
def made(make_cell: Callable[..., Made]) -> Made:
    return make_cell("safeecgmatch")


@pytest.fixture(scope="session")
def trained(made: Made) -> Trained:
    return Trained.open(made.folder)
