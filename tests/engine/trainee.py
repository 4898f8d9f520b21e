"""A training process for tests that kill it: the real cell, the real checkpoints, nobody to log to.

Usage: python -m tests.engine.trainee METHOD (in a folder with params.yaml and data/)
"""

from __future__ import annotations

import sys
from pathlib import Path

from safeecgmatch.cells import Cell
from safeecgmatch.config import PROPOSED, load_params
from safeecgmatch.engine.fingerprint import resolve
from safeecgmatch.launching.adoption import adopt
from safeecgmatch.launching.scratch import Scratch
from safeecgmatch.launching.train_cell import train_cell

if __name__ == "__main__":
    name = sys.argv[1]
    params = load_params()
    cell = Cell("ptbxl", name, 60, 1, "full", 1.0 if name == PROPOSED else None)
    config = resolve(params, cell)
    scratch = Scratch.of(cell.path, config["fingerprint"])
    train_cell(params, cell, config, scratch, Path("data"), scratch.uid())
    adopt(cell.path, config)
