"""A training for tests that kill it: the real cell, the real checkpoints, nobody to log to."""

from __future__ import annotations

import os
from pathlib import Path

from safeecgmatch.cells import Cell
from safeecgmatch.config import PROPOSED, load_params
from safeecgmatch.engine.fingerprint import resolve
from safeecgmatch.launching.adoption import adopt
from safeecgmatch.launching.cell import train_cell
from safeecgmatch.launching.scratch import Scratch


def train(folder: Path, name: str) -> None:
    """Train and adopt the cell of a method in a folder with params.yaml and data/."""
    os.chdir(folder)
    os.environ["DVC_ROOT"] = str(folder)
    params = load_params()
    cell = Cell("ptbxl", name, 60, 1, "full", 1.0 if name == PROPOSED else None)
    config = resolve(params, cell)
    scratch = Scratch.of(cell.path, config["fingerprint"])
    train_cell(params, cell, config, scratch, Path("data"), scratch.uid())
    adopt(cell.path, config)
