"""The board: bars on a terminal, sparse lines elsewhere, the time left from iterations."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from safeecgmatch.files import write_json
from safeecgmatch.launching import board
from safeecgmatch.launching.board import Board
from safeecgmatch.launching.jobs import Failure, Job
from safeecgmatch.launching.scratch import Scratch
from tests.launching.study import job


def progress(job: Job, iteration: int, seconds: float, begun_at: int = 0) -> None:
    write_json(Scratch(job.folder).progress, {
        "iteration": iteration, "iterations": 100, "seconds": seconds, "begun_at": begun_at,
    })  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_time_left_comes_from_iterations_and_never_from_waiting(tmp_path: Path) -> None:
    first, second, third = jobs = [job(tmp_path, name) for name in ("supervised", "fixmatch", "calimatch")]
    report = Board(jobs, 100, io.StringIO())
    assert report.summary() == "3 queued, 0 running, 0 of 3 done"
    report.started(first)
    assert "left" not in report.summary(), "a cell without an iteration tells nothing"
    progress(first, 60, 5.0, begun_at=50)  # two iterations a second since it went on from a checkpoint
    assert report.note(first) == "60/100 iterations, 0:20 left"
    assert report.summary() == "2 queued, 1 running, 0 of 3 done, 2:00 left"
    report.started(second)
    progress(second, 40, 20.0)
    assert report.summary() == "1 queued, 2 running, 0 of 3 done, 0:50 left"  # 200 iterations, four a second
    report.queued(second)
    assert report.summary() == "2 queued, 1 running, 0 of 3 done, 2:00 left"
    report.finished(first, None)
    report.finished(second, Failure(second, "killed"))
    assert report.summary() == "1 queued, 0 running, 1 of 3 done, 1 failed"
    report.started(third)
    report.finished(third, None)
    assert report.summary() == "0 queued, 0 running, 2 of 3 done, 1 failed"


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["log", "terminal"])
def test_failures_are_shown_at_once_and_the_sum_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: io.StringIO
) -> None:
    monkeypatch.setattr(board, "SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setenv("COLUMNS", "200")
    good, bad = job(tmp_path), job(tmp_path, "calimatch")
    with Board([good, bad], 100, stream) as report:
        report.started(good)
        progress(good, 50, 5.0)
        report.tick()
        report.bars.refresh()
        report.finished(good, None)
        report.started(bad)
        report.finished(bad, Failure(bad, "exit status 1"))
        assert "ptbxl/calimatch/60/1 failed (exit status 1), log in" in stream.getvalue()
    shown = " ".join(stream.getvalue().split())
    assert "ptbxl/fixmatch/60/1" in shown and "50/100 iterations, 0:05 left" in shown
    assert "1 queued, 1 running, 0 of 2 done, 0:15 left" in shown
    assert "training cells: 0 queued, 0 running, 1 of 2 done, 1 failed after 0:00" in shown


def test_lines_in_a_log_are_sparse_and_plain(tmp_path: Path) -> None:
    stream = io.StringIO()
    with Board([job(tmp_path)], 100, stream) as report:
        for _ in range(100):
            report.tick()
    assert stream.getvalue() == "training cells: 1 queued, 0 running, 0 of 1 done after 0:00\n"
