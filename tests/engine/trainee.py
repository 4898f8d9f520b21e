"""A training process for tests that kill it: the real cell, the real checkpoints, nobody to log to.

Usage: python -m tests.engine.trainee METHOD PROTOCOL (in a folder with params.yaml and data/)
"""

from __future__ import annotations

import sys
from typing import Any

from safeecgmatch.cells import Cell
from safeecgmatch.config import PROPOSED, load_params
from safeecgmatch.launching.cell import run_cell


class NoLog:
    uid = "none"

    def evaluation(self, iteration: int, metrics: Any) -> None:
        """Nobody to tell."""

    def interrupt(self) -> None:
        """Nobody to tell."""


if __name__ == "__main__":
    name = sys.argv[1]
    cell = Cell("ptbxl", name, 60, 1, "full", 1.0 if name == PROPOSED else None)
    run_cell(load_params(), cell, lambda *_: NoLog(), lambda *_: None)
