"""The SLURM launcher without SLURM: its sentences, what it submits, and how it reads a queue."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from safeecgmatch.errors import UserError
from safeecgmatch.files import read_json, write_json
from safeecgmatch.launching import slurm
from safeecgmatch.launching.cluster import Cluster
from safeecgmatch.launching.cluster import Slurm as Settings
from safeecgmatch.launching.jobs import Failure, Means
from tests.launching.study import Heard, running
from tests.launching.study import job as make_job


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts shell scripts in the place of SLURM's programs; nothing else is on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(**scripts: str) -> None:
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)

    return put


def test_without_slurm_one_sentence(programs: Callable[..., None]) -> None:
    pytest.importorskip("submitit")
    with pytest.raises(UserError, match="needs SLURM's sbatch, which is not here: run this on a login node"):
        slurm.check(Cluster())


def test_a_controller_that_does_not_answer_gives_one_sentence(
    programs: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    programs(sbatch="", scancel="", scontrol="", srun="", squeue="echo no contact >&2; exit 1")
    with pytest.raises(UserError, match=r"SLURM does not answer \(no contact\)"):
        slurm.check(Cluster())
    programs(squeue="exec /bin/sleep 60")
    monkeypatch.setattr(slurm, "SECONDS_FOR_AN_ANSWER", 0.2)
    with pytest.raises(UserError, match="squeue said nothing in 0 s"):
        slurm.check(Cluster())


@pytest.mark.parametrize(
    ("sacct", "reason"),
    [({}, "there is no sacct here"), ({"sacct": "echo accounting is disabled >&2; exit 1"}, "accounting is disabled")],
)
def test_without_accounts_it_goes_on_and_a_failure_points_to_its_log(
    programs: Callable[..., None], sacct: dict[str, str], reason: str
) -> None:
    pytest.importorskip("submitit")
    programs(sbatch="", scancel="", scontrol="", srun="", squeue="", **sacct)
    slurm.check(Cluster())
    words = f"SLURM job 7_1 ended without a result; why, its log may tell ({reason})"
    assert slurm.why_it_ended("7_1") == words


def test_why_a_job_ended_comes_from_its_accounts(programs: Callable[..., None]) -> None:
    programs(sacct="echo 'OUT_OF_MEMORY|0:9'")
    assert slurm.why_it_ended("7_1") == "SLURM job 7_1 ended without a result: OUT_OF_MEMORY, killed by signal 9"
    programs(sacct="echo 'FAILED|1:0'")
    assert slurm.why_it_ended("7_1") == "SLURM job 7_1 ended without a result: FAILED, exit status 1"


def test_the_submission_asks_for_what_cluster_yaml_says_and_is_noted(
    programs: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setattr(slurm, "scratch_root", lambda: tmp_path / "scratch")
    programs(srun="", sbatch=f'while read -r line; do echo "$line"; done < $1 > {tmp_path}/script; echo job 5')
    settings = Settings(partition="gpu", account="heart", gpus=1, cpus=4, memory="16GB", minutes=90)
    settings.options["qos"] = "long"
    means = Means(tmp_path / "snap", tmp_path / "data", 8, (), Cluster(slurm=settings))
    jobs = [make_job(tmp_path, f"method{number}") for number in range(20)]
    assert slurm.submit(jobs, means) == {job: f"5_{number}" for number, job in enumerate(jobs)}
    assert read_json(jobs[3].folder / slurm.NOTE) == {"id": "5_3", "name": "safeecgmatch-snap"}
    text = (tmp_path / "script").read_text()
    for line in "partition=gpu account=heart gpus-per-node=1 cpus-per-task=4 mem=16GB time=90 qos=long requeue".split():
        assert f"#SBATCH --{line}\n" in text
    assert "#SBATCH --array=0-19%8\n" in text and "#SBATCH --signal=B:USR2@120\n" in text
    assert f"export PYTHONPATH={tmp_path}/snap/src\n" in text and "srun" not in text.replace("# ", "")
    programs(sbatch="echo invalid partition >&2; exit 1")
    with pytest.raises(UserError, match=r"SLURM took no job \(.*invalid partition.*\): look at cluster\.yaml"):
        slurm.submit(jobs, means)


def test_the_queue_tells_what_becomes_of_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good, dead = make_job(tmp_path, "fixmatch"), make_job(tmp_path, "adello")
    monkeypatch.setattr(slurm, "SECONDS_BETWEEN_QUESTIONS", 0.0)
    monkeypatch.setattr(slurm, "scratch_root", lambda: tmp_path / "scratch")
    monkeypatch.setattr(slurm.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(slurm, "why_it_ended", lambda number: f"{number} ended")
    log = pytest.importorskip("submitit").SlurmJob(slurm.submissions(), "5_1").paths.stdout
    log.parent.mkdir(parents=True)
    log.write_text("python: not found\n")
    answers = iter(
        [
            {"5_0": ("n", "PENDING"), "5_1": ("n", "RUNNING")},
            {"5_0": ("n", "RUNNING")},
            slurm.NoAnswer("the controller restarts"),
            {"5_0": ("n", "PENDING")},
            {"5_0": ("n", "RUNNING")},
            {},
        ]
    )

    def ask() -> object:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        if answer == {}:
            (good.folder / "finished").mkdir(parents=True)
        return answer

    monkeypatch.setattr(slurm, "ask_queue", ask)
    report = Heard()
    failures = slurm.follow({good: "5_0", dead: "5_1"}, report)
    assert failures == [Failure(dead, "5_1 ended")]
    assert report.events == [
        "adello started",
        "fixmatch started",
        "fixmatch queued",
        "fixmatch started",
        "adello failed",
        "fixmatch done",
    ]
    assert dead.log.read_text() == "python: not found\n"
    assert "SLURM does not answer (the controller restarts); waiting until it does." in capsys.readouterr().err


def test_only_a_live_job_of_the_same_submission_is_joined(tmp_path: Path) -> None:
    job = make_job(tmp_path, "fixmatch")
    assert slurm.queued_as(job, {"5_0": ("safeecgmatch-1", "PENDING")}) == ""
    write_json(job.folder / slurm.NOTE, {"id": "5_0", "name": "safeecgmatch-1"})
    assert slurm.queued_as(job, {"5_0": ("safeecgmatch-1", "PENDING")}) == "5_0"
    assert slurm.queued_as(job, {"5_0": ("of somebody else", "RUNNING")}) == ""
    assert slurm.queued_as(job, {}) == ""


TASK = """
import os, signal, sys
from pathlib import Path
from safeecgmatch.cells import Cell
from safeecgmatch.launching import jobs
from safeecgmatch.launching.cluster import Cluster
from safeecgmatch.launching.slurm import SlurmTask
cell = "import os, signal, time; signal.signal(signal.SIGTERM, lambda *_: os._exit({status}));"
cell += "os.kill(os.getppid(), signal.SIGUSR2); time.sleep(60)"
jobs.arguments = lambda job, means: [sys.executable, "-c", cell]
job = jobs.Job(Cell("ptbxl", "fixmatch", 60, 1), Path("fixmatch"), "uid", Path("log"))
task = SlurmTask(job, jobs.Means(Path.cwd(), Path("data"), 1, (), Cluster()))
signal.signal(signal.SIGUSR2, lambda *_: print("again:", task.checkpoint().function == task, flush=True))
task()
"""


@pytest.mark.parametrize(("status", "printed", "code"), [(143, "again: True\n", 143), (0, "", 0)])
def test_a_warning_before_the_time_limit_stops_the_cell_and_asks_for_another_turn_unless_it_is_done(
    tmp_path: Path, status: int, printed: str, code: int
) -> None:
    pytest.importorskip("submitit")
    script = TASK.format(status=status)
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == (printed, code), done.stderr


@pytest.mark.parametrize(("code", "status"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_a_task_ends_with_the_status_of_its_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, status: int
) -> None:
    job, means = running(f"print('said'); {code}", tmp_path, monkeypatch)
    with pytest.raises(SystemExit) as stop:
        slurm.SlurmTask(job, means)()
    assert stop.value.code == status
    assert job.log.read_text() == "said\n"
