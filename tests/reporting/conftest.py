from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from safeecgmatch.cells import Cell
from safeecgmatch.config import Params
from safeecgmatch.reporting import evaluate as evaluating
from safeecgmatch.reporting.evaluate import evaluate
from safeecgmatch.reporting.study import Study
from tests.reporting.synthetic import EVERYTHING, make_params, write_study


@dataclass(frozen=True)
class MadeUp:
    params: Params
    root: Path
    cells: list[Cell]
    evaluation: Study


@pytest.fixture(scope="package", autouse=True)
def every_cell_is_the_one_that_is_asked_for() -> Iterator[None]:
    """Made-up cells have no data that a config could be compared with; tests/test_pipeline.py compares real ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluating, "asked_for", lambda params, data: lambda cell, config: "")
        yield


@pytest.fixture(scope="package")
def study(tmp_path_factory: pytest.TempPathFactory) -> MadeUp:
    """All cells of a demo-sized study with readings, variants and arms, evaluated."""
    root = tmp_path_factory.mktemp("study")
    params = make_params(**EVERYTHING)
    cells = write_study(params, root, records=60)
    return MadeUp(params, root, cells, evaluate(params, root / "runs", root / "tracking"))
