"""How long cells will take, from those of the same profile that were trained before."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from safeecgmatch.cells import Cell
from safeecgmatch.files import read_json
from safeecgmatch.tracking.record import RECORD_FILE


def trained_before(root: Path, profile: str) -> dict[str, float]:
    """Seconds per iteration by method, from the cells below tracking/."""
    seen: dict[str, list[float]] = {}
    for file in sorted((root / "tracking").rglob(RECORD_FILE)):
        record = read_json(file)
        if record["profile"] == profile:
            seen.setdefault(record["cell"]["method"], []).append(1 / record["iterations_per_second"])
    return {method: fmean(values) for method, values in seen.items()}


def seconds_of(cells: Iterable[Cell], iterations: int, speeds: dict[str, float]) -> float | None:
    """Of training all of them one after the other; None if no cell was ever trained.

    A method that was never trained is taken to be like the mean of the others.
    """
    if not speeds:
        return None
    return iterations * sum(speeds.get(cell.method, fmean(speeds.values())) for cell in cells)
