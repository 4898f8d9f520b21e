"""The micro study on a real one-node SLURM, with everything happening to its cells that happens on clusters."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launching.study import (
    FAILING,
    IN_THE_MIDDLE,
    KILLED,
    LIMITED,
    PREEMPTED,
    REQUEUED,
    UNTOUCHED,
    folder_of,
    iteration,
    launched,
    make_study,
    open_listeners,
    outputs,
    parent,
    processes,
    stopped_in_the_middle,
    wait_for,
)
from tests.micro import Project, stages_run
from tests.slurm.cluster import CPUS, Cluster, why_not

pytest.importorskip("submitit", reason="the extra 'slurm' is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:  # pytest's own folders are closed to munge and mysql
        Path(folder).chmod(0o755)
        cluster = Cluster(Path(folder) / "cluster")
        cluster.start()
        yield cluster
        cluster.stop()


def slurm_job(project: Project, cell: str) -> str:
    """The id of the job that trains `cell`."""
    [note] = (project.root / "scratch" / cell).glob("*/slurm.json")
    return note.read_text().split('"id": "')[1].split('"')[0]


def goes_on(project: Project, cluster: Cluster, cell: str, job: str) -> None:
    """Start the requeued job at once, for which SLURM takes two minutes, and see it begin at its checkpoint."""

    def pending() -> bool:
        return "PENDING" in cluster.run("squeue", "--noheader", "--array", f"--jobs={job}", "--format=%T")

    wait_for(pending)
    cluster.run("scontrol", "update", f"jobid={job}", "starttime=now", "timelimit=20")
    wait_for(lambda: iteration(project.root / "scratch", cell, "begun_at") >= IN_THE_MIDDLE)


def test_killed_requeued_limited_and_failed_cells_end_with_the_bytes_of_a_local_run(
    cluster: Cluster, tmp_path: Path, trained_locally: dict[str, str]
) -> None:
    project = make_study(tmp_path / "project", slurm={"memory": "1GB", "minutes": 20, "warning_seconds": 120})
    project.environment |= {"SLURM_CONF": cluster.environment["SLURM_CONF"]}
    project.run("dvc", "repro", "code", "split")
    obstacle = project.root / "scratch" / folder_of(project, FAILING) / "lock"
    obstacle.mkdir(parents=True)  # the cell wants to write a file of this name
    with launched(project, "--on", "slurm") as (process, printed):
        scratch = project.root / "scratch"
        killed = stopped_in_the_middle(scratch, KILLED)
        os.kill(parent(killed), signal.SIGKILL)
        os.kill(killed, signal.SIGCONT)
        stopped_in_the_middle(scratch, REQUEUED)
        requeued = slurm_job(project, REQUEUED)
        cluster.run("scontrol", "requeue", requeued)
        stopped = stopped_in_the_middle(scratch, LIMITED)
        limited = slurm_job(project, LIMITED)
        cluster.run("scontrol", "update", f"jobid={limited}", "timelimit=1")
        [log] = (scratch / "slurm").glob(f"{limited}_*_log.out")
        wait_for(lambda: "SIGUSR2" in log.read_text())
        os.kill(stopped, signal.SIGCONT)
        code = project.root / "src/safeecgmatch/engine/loop.py"
        source = code.read_text()
        code.write_text("raise SyntaxError('edited while jobs wait')")  # they have a snapshot
        for cell, job in ((REQUEUED, requeued), (LIMITED, limited)):
            goes_on(project, cluster, cell, job)
        code.write_text(source)
        assert process.wait() == 1
        text = printed.read_text()
    assert f"{KILLED} failed (SLURM job" in text and "killed by signal 9" in text
    assert f"{FAILING} failed (SLURM job" in text and "exit status 1" in text and "IsADirectoryError" in text
    assert "2 of 5 cells failed" in text
    assert {path for path in outputs(project) if path.startswith("runs/")} == {
        f"runs/{cell}" for cell in (REQUEUED, LIMITED, UNTOUCHED)
    }
    assert list((project.root / "scratch" / KILLED).glob("*/checkpoint.pt"))
    obstacle.rmdir()
    again = project.safeecgmatch("run", "--on", "slurm")
    assert "5 training cells, 2 of them to be trained." in again
    assert again.count("taken over from scratch") == 2
    assert outputs(project) == trained_locally
    assert stages_run(project.run("dvc", "repro")) == []


def test_jobs_go_on_without_the_command_that_submitted_them_which_joins_them_when_started_again(
    cluster: Cluster, tmp_path: Path, trained_locally: dict[str, str]
) -> None:
    project = make_study(tmp_path / "project", slurm={"memory": "1GB"})
    project.environment |= {"SLURM_CONF": cluster.environment["SLURM_CONF"]}
    with launched(project, "--on", "slurm", "--jobs", "1", PREEMPTED, LIMITED) as (process, printed):
        stopped_in_the_middle(project.root / "scratch", PREEMPTED)
        preempted = slurm_job(project, PREEMPTED)
        sleep = ("--parsable", "--partition=urgent", f"--cpus-per-task={CPUS}", "--output=/dev/null", "--wrap=sleep 1d")
        urgent = cluster.run("sbatch", *sleep).strip()
        process.terminate()  # taken like Ctrl-C
        assert process.wait() == 130
        text = printed.read_text()
    array = preempted.partition("_")[0]
    assert f"scancel {array}" in text and "Start the same command again" in text
    with (project.root / "src/safeecgmatch/engine/loop.py").open("a") as stream:
        stream.write("\n# an edit while jobs wait\n")
    wait_for(lambda: len(cluster.run("squeue", "--noheader", "--array", "--states=PENDING").splitlines()) == 2)
    with launched(project, "--on", "slurm", PREEMPTED, LIMITED) as (process, printed):
        wait_for(lambda: "Queued or running already: 2 of the cells" in printed.read_text())
        cluster.run("scancel", urgent)
        goes_on(project, cluster, PREEMPTED, preempted)
        assert process.wait() == 0, printed.read_text()
    assert len(list((project.root / "scratch" / "slurm").glob("*_submission.sh"))) == 1
    cells = {path: md5 for path, md5 in trained_locally.items() if path in (f"runs/{PREEMPTED}", f"runs/{LIMITED}")}
    assert outputs(project) == cells
    assert cluster.run("squeue", "--noheader").strip() == ""


def test_every_daemon_of_the_cluster_listens_on_loopback_alone() -> None:
    before = open_listeners()
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        Path(folder).chmod(0o755)
        other = Cluster(Path(folder) / "cluster")
        other.start()
        try:
            assert open_listeners() <= before
        finally:
            other.stop()
        assert not processes(folder)
