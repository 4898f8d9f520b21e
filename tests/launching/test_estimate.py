"""Hours of training, from cells that were trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from safeecgmatch.cells import Cell
from safeecgmatch.files import write_json
from safeecgmatch.launching.estimate import seconds_of, trained_before


def test_hours_are_estimated_from_trained_cells(tmp_path: Path) -> None:
    wanted = [Cell("ptbxl", method, 60, 1) for method in ("fixmatch", "calimatch", "adello")]
    assert seconds_of(wanted, 100, trained_before(tmp_path, "micro")) is None
    for method, speed in (("fixmatch", 10.0), ("calimatch", 5.0)):
        record = {"profile": "micro", "cell": {"method": method}, "iterations_per_second": speed}
        write_json(tmp_path / "tracking" / method / "run.json", record)
    write_json(tmp_path / "tracking/x/run.json", record | {"profile": "paper", "iterations_per_second": 1e-6})
    assert seconds_of(wanted, 100, trained_before(tmp_path, "micro")) == pytest.approx(10 + 20 + 15)
