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

submitit = pytest.importorskip("submitit", reason="the extra 'slurm' is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """One whose daemons listen on loopback alone and leave nothing behind."""
    before = open_listeners()
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:  # pytest's own folders are closed to munge and mysql
        Path(folder).chmod(0o755)
        cluster = Cluster(Path(folder) / "cluster")
        cluster.start()
        try:
            assert open_listeners() <= before
            yield cluster
        finally:
            cluster.stop()
        assert not processes(folder)


def slurm_job(project: Project, cell: str) -> str:
    """The id of the job that trains `cell`."""
    [note] = (project.root / "scratch" / cell).glob("*/slurm.json")
    return note.read_text().split('"id": "')[1].split('"')[0]


def goes_on(project: Project, cluster: Cluster, cell: str, job: str) -> None:
    """Start the requeued job at once, for which SLURM takes two minutes, and see it begin at its checkpoint."""

    def begun() -> bool:
        if "PENDING" in cluster.run("squeue", "--noheader", "--array", f"--jobs={job}", "--format=%T"):
            # refused while SLURM still clears up after the last turn, or if it starts the job in this moment
            cluster.succeeds("scontrol", "update", f"jobid={job}", "starttime=now", "timelimit=20")
        return iteration(project.root / "scratch", cell, "begun_at") >= IN_THE_MIDDLE

    wait_for(begun)


def preempt(cluster: Cluster, project: Project, cell: str) -> str:
    """Take the node away from `cell` by a job of higher priority, whose id is returned."""
    stopped_in_the_middle(project.root / "scratch", cell)
    sleep = ("--parsable", "--partition=urgent", f"--cpus-per-task={CPUS}", "--output=/dev/null", "--wrap=sleep 1d")
    return cluster.run("sbatch", *sleep).strip()


def test_cells_joined_preempted_killed_requeued_limited_and_failed_end_with_the_bytes_of_a_local_run(
    cluster: Cluster, tmp_path: Path, trained_locally: dict[str, str]
) -> None:
    project = make_study(tmp_path / "project", slurm={"memory": "1GB", "minutes": 20, "warning_seconds": 120})
    project.environment |= {"SLURM_CONF": cluster.environment["SLURM_CONF"]}
    project.run("dvc", "repro", "code", "split")
    scratch, code = project.root / "scratch", project.root / "src/safeecgmatch/engine/loop.py"
    obstacle = scratch / folder_of(project, FAILING) / "lock"
    obstacle.mkdir(parents=True)  # the cell wants to write a file of this name

    with launched(project, "--on", "slurm", PREEMPTED) as (process, printed):
        urgent = preempt(cluster, project, PREEMPTED)
        process.terminate()  # taken like Ctrl-C
        assert process.wait() == 130
        text = printed.read_text()
    preempted = slurm_job(project, PREEMPTED)
    assert f"scancel {preempted.partition('_')[0]}" in text and "Start the same command again" in text
    source = code.read_text() + "\n# an edit while a job waits\n"
    code.write_text(source)
    wait_for(lambda: "PENDING" in cluster.run("squeue", "--noheader", f"--jobs={preempted}", "--format=%T"))

    with launched(project, "--on", "slurm") as (process, printed):
        wait_for(lambda: "Queued or running already: 1 of the cells" in printed.read_text())
        cluster.run("scancel", urgent)
        killed = stopped_in_the_middle(scratch, KILLED)
        os.kill(parent(killed), signal.SIGKILL)
        os.kill(killed, signal.SIGCONT)
        stopped_in_the_middle(scratch, REQUEUED)
        requeued = slurm_job(project, REQUEUED)
        cluster.run("scontrol", "requeue", requeued)
        stopped = stopped_in_the_middle(scratch, LIMITED)
        limited = slurm_job(project, LIMITED)
        cluster.run("scontrol", "update", f"jobid={limited}", "timelimit=1")
        wait_for(lambda: "SIGUSR2" in (submitit.SlurmJob(scratch / "slurm", limited).stdout() or ""))
        os.kill(stopped, signal.SIGCONT)
        code.write_text("raise SyntaxError('edited while jobs wait')")  # they have a snapshot
        for cell, job in ((PREEMPTED, preempted), (REQUEUED, requeued), (LIMITED, limited)):
            goes_on(project, cluster, cell, job)
        code.write_text(source)
        assert process.wait() == 1
        text = printed.read_text()
    count = len(trained_locally) - 1  # the last is metrics.csv
    assert f"{KILLED} failed (SLURM job" in text and "killed by signal 9" in text
    assert f"{FAILING} failed (SLURM job" in text and "exit status 1" in text and "IsADirectoryError" in text
    assert f"2 of {count} cells failed" in text
    failed = {f"runs/{KILLED}", f"runs/{FAILING}", "reports/micro/paper/metrics.csv"}
    assert outputs(project) == {path: md5 for path, md5 in trained_locally.items() if path not in failed}
    assert list((scratch / KILLED).glob("*/checkpoint.pt"))

    obstacle.rmdir()
    again = project.safeecgmatch("run", "--on", "slurm")
    assert f"{count} training cells, 2 of them to be trained." in again
    assert again.count("taken over from scratch") == 2
    assert outputs(project) == trained_locally
    assert stages_run(project.run("dvc", "repro")) == []
    assert cluster.run("squeue", "--noheader").strip() == ""
