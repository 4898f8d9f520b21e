"""What a run and an experiment hold."""

from __future__ import annotations

from pathlib import Path

from safeecgmatch.tracking.store import Store
from tests.tracking.written import make_config, make_record, runs


def test_a_run_whose_creation_went_unanswered_is_found_again(project: Path) -> None:
    config = make_config("ptbxl/fixmatch/30/1")
    record = make_record(config, "ptbxl/fixmatch/30/1")
    assert Store().open_run(record, config) == Store().open_run(record, config)
    assert len(runs()) == 1
