"""How long cells will take, from those that were trained and from the iterations of those that run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from safeecgmatch.cells import Cell
from safeecgmatch.files import read_json
from safeecgmatch.launching.jobs import Job
from safeecgmatch.launching.scratch import Scratch
from safeecgmatch.tracking.record import RECORD_FILE


class Speeds:
    """Seconds per iteration by method; what is not known of one method is taken from the others."""

    def __init__(self) -> None:
        self.seen: dict[str, list[float]] = {}

    def learn(self, method: str, seconds_per_iteration: float) -> None:
        self.seen.setdefault(method, []).append(seconds_per_iteration)

    def of(self, method: str) -> float | None:
        values = self.seen.get(method) or [fmean(known) for known in self.seen.values()]
        return fmean(values) if values else None


def trained_before(root: Path, profile: str) -> Speeds:
    """From the cells of this profile below tracking/."""
    speeds = Speeds()
    for file in sorted((root / "tracking").rglob(RECORD_FILE)):
        record = read_json(file)
        if record["profile"] == profile:
            speeds.learn(record["cell"]["method"], 1 / record["iterations_per_second"])
    return speeds


def seconds_of(cells: Iterable[Cell], iterations: int, speeds: Speeds) -> float | None:
    """Of training all of them one after the other; None if no cell was ever trained."""
    seconds = [speeds.of(cell.method) for cell in cells]
    return None if None in seconds else iterations * sum(value or 0.0 for value in seconds)


def position(job: Job) -> tuple[int, float | None]:
    """The iterations that a running job has made, and its seconds per iteration since this process began."""
    file = Scratch(job.folder).progress
    if not file.exists():
        return 0, None
    progress = read_json(file)
    made = progress["iteration"] - progress["begun_at"]
    return progress["iteration"], progress["seconds"] / made if made else None
