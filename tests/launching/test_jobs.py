"""The end of a job's log, and what its exit status means."""

from __future__ import annotations

from pathlib import Path

import pytest

from safeecgmatch.launching import jobs
from safeecgmatch.launching.jobs import Failure, failure_of, last_lines
from tests.launching.study import job


def test_last_lines_see_through_progress_bars(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log, 2) == []
    log.write_text("first\n\n10 %\r20 %\r30 %")
    assert last_lines(log, 2) == ["20 %", "30 %"]


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (-9, "killed by signal 9 (SIGKILL)"),
        (3, "exit status 3"),
        (0, "its process ended well, but {folder} shows no result"),
    ],
)
def test_an_exit_status_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, reason: str) -> None:
    monkeypatch.setattr(jobs, "SECONDS_FOR_A_SHARED_FOLDER", -1.0)
    bad = job(tmp_path)
    assert failure_of(bad, status) == Failure(bad, reason.format(folder=bad.folder))
    (bad.folder / "finished").mkdir(parents=True)
    assert (failure_of(bad, status) is None) == (status == 0)
