"""Cells on this machine, forked by a fork server: killed, interrupted, orphaned."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml

from safeecgmatch.cells import find_cell
from safeecgmatch.config import load_params
from safeecgmatch.launching import local, snapshot
from safeecgmatch.launching.cluster import Cluster
from safeecgmatch.launching.jobs import Job, Means, last_lines, start
from safeecgmatch.launching.run import make_job
from safeecgmatch.launching.scratch import Scratch
from tests.conftest import ROOT
from tests.launching.study import Heard, alive, launched, parent, wait_for
from tests.micro import Project, micro_params

CELL = "ptbxl/fixmatch/60/1"


class LongStudy:
    """Jobs of the micro study with another number of iterations, and a snapshot of it, beside its data."""

    def __init__(self, project: Project, root: Path, monkeypatch: pytest.MonkeyPatch, iterations: int) -> None:
        root.mkdir()
        monkeypatch.chdir(root)
        monkeypatch.delenv("DVC_ROOT", raising=False)
        content = micro_params()
        content["train"] |= {"iterations": iterations}
        (root / "params.yaml").write_text(yaml.safe_dump(content))
        for name in ("src", "stages"):
            (root / name).symlink_to(ROOT / name)
        (root / "data").symlink_to(project.root / "data")
        self.params = load_params()
        self.means = Means(snapshot.take(root), root / "data", 2, (), Cluster())

    def job(self, path: str) -> Job:
        return make_job(self.params, find_cell(self.params, path))


@pytest.fixture
def long_study(study: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], LongStudy]:
    return partial(LongStudy, study, tmp_path / "study", monkeypatch)


def pid_of(job: Job) -> int:
    return int((job.folder / "lock").read_text())


def test_a_killed_cell_costs_itself_alone_and_goes_on_next_time(long_study) -> None:
    study = long_study(40)
    jobs = [study.job(path) for path in (CELL, "ptbxl/supervised/60/1", "ptbxl/safeecgmatch/60/1")]
    victim = jobs[0]

    def kill_once() -> None:
        if Scratch(victim.folder).checkpoint.exists() and not kills:
            os.kill(pid_of(victim), signal.SIGKILL)
            kills.append(1)

    kills: list[int] = []
    report = Heard(kill_once)
    failures = local.launch(jobs, report, study.means)
    assert [(failure.job, failure.reason) for failure in failures] == [(victim, "killed by signal 9 (SIGKILL)")]
    assert report.most == 2 and not report.running
    assert not [event for event in report.events if "queued" in event], "nothing is requeued on this machine"
    assert all(Scratch(job.folder).problem() == "" for job in jobs[1:])
    again = Heard()
    assert local.launch([study.job(job.name) for job in jobs], again, study.means) == []
    assert Scratch(victim.folder).problem() == "" and study.job(CELL).uid == victim.uid
    assert "iterations" not in jobs[1].log.read_text(), "a finished cell was trained a second time"


def test_an_interrupt_lets_cells_write_a_checkpoint_and_leaves_nobody(long_study) -> None:
    study = long_study(10**6)
    job = study.job(CELL)

    def interrupt() -> None:
        if Scratch(job.folder).progress.exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        local.launch([job], Heard(interrupt), study.means)
    assert Scratch(job.folder).checkpoint.exists() and not alive(pid_of(job))
    assert "run the same command again to go on" in last_lines(job.log, 1)[0]


@pytest.mark.slow
def test_cells_end_themselves_where_the_fork_server_is_killed(long_study) -> None:
    study = long_study(10**6)
    job = study.job(CELL)

    def kill_the_fork_server() -> None:
        if Scratch(job.folder).progress.exists() and not killed:
            killed.append(parent(pid_of(job)))
            assert len(list(Path(f"/proc/{killed[0]}/task").iterdir())) == 1, "a fork does not survive threads"
            os.kill(killed[0], signal.SIGKILL)

    killed: list[int] = []
    [failure] = local.launch([job], Heard(kill_the_fork_server), study.means)
    assert failure.job == job and failure.reason.startswith("exit status")
    wait_for(lambda: not alive(pid_of(job)), seconds=60)
    assert Scratch(job.folder).checkpoint.exists()


@pytest.mark.slow
def test_cells_end_themselves_where_the_command_is_killed(project: Project) -> None:
    project.params(train=micro_params()["train"] | {"iterations": 10**6, "epoch": 10**5}, checkpoint_every=10**5)
    with launched(project, CELL) as (process, _):
        wait_for(lambda: list((project.root / "scratch" / CELL).glob("*/progress.json")))
        [lock] = (project.root / "scratch" / CELL).glob("*/lock")
        cell = int(lock.read_text())
        server = parent(cell)
        process.kill()
        wait_for(lambda: not alive(cell) and not alive(server), seconds=60)
    assert Scratch(lock.parent).checkpoint.exists()


def test_a_cell_whose_data_changed_after_submission_refuses(long_study, tmp_path: Path) -> None:
    study = long_study(4)
    job = replace(study.job(CELL), folder=tmp_path / "another", log=tmp_path / "log")
    assert start(job, study.means).wait() == 1
    assert "changed after submission; submit it again" in job.log.read_text()
