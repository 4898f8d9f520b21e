"""The Dask launcher: its sentences, the task that a worker runs, and, slowly, a study on a local cluster in trouble."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from threading import Timer

import pytest

from safeecgmatch.errors import UserError
from safeecgmatch.files import write_text
from safeecgmatch.launching import dask
from safeecgmatch.launching.cluster import Cluster
from safeecgmatch.launching.cluster import Dask as Settings
from tests.launching.study import (
    FAILING,
    KILLED,
    REQUEUED,
    folder_of,
    launched,
    make_study,
    open_listeners,
    outputs,
    parent,
    processes,
    running,
    stopped_in_the_middle,
    wait_for,
)
from tests.micro import stages_run

distributed = pytest.importorskip("distributed", reason="the extra 'dask' is not installed")


@pytest.mark.parametrize("listening", [False, True])
def test_an_address_that_answers_nothing_gives_one_sentence(monkeypatch: pytest.MonkeyPatch, listening: bool) -> None:
    monkeypatch.setattr(dask, "SECONDS_TO_CONNECT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        if not listening:
            server.close()
        with pytest.raises(UserError, match=f"No Dask scheduler answers at {address} .*correct dask.scheduler in"):
            dask.check(Cluster(dask=Settings(scheduler=address)))


def test_without_an_address_or_with_nonsense_one_sentence() -> None:
    with pytest.raises(UserError, match=r"cluster\.yaml names no scheduler"):
        dask.check(Cluster())
    with pytest.raises(UserError, match=r"No Dask scheduler answers at tcp://127\.0\.0\.1:port"):
        dask.check(Cluster(dask=Settings(scheduler="tcp://127.0.0.1:port")))


def test_tls_without_its_files_gives_one_sentence() -> None:
    with pytest.raises(UserError, match=r"at tls://127\.0\.0\.1:8786 .*the TLS files in Dask's own configuration"):
        dask.check(Cluster(dask=Settings(scheduler="tls://127.0.0.1:8786")))


@pytest.mark.parametrize(
    ("code", "status"), [("print('said')", 0), ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL)]
)
def test_a_task_ends_with_the_status_of_its_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, status: int
) -> None:
    monkeypatch.setattr(dask, "SECONDS_BETWEEN_LOOKS", 0.05)
    job, means = running(code, tmp_path, monkeypatch)
    write_text(job.folder / dask.NOTE, "")
    assert dask.train(job, means) == status
    assert job.log.read_text() == ("" if status else "said\n")


def test_a_task_without_its_note_stops_its_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask, "SECONDS_BETWEEN_LOOKS", 0.05)
    job, means = running("import time; time.sleep(60)", tmp_path, monkeypatch)
    write_text(job.folder / dask.NOTE, "")
    Timer(0.5, (job.folder / dask.NOTE).unlink).start()
    assert dask.train(job, means) == -signal.SIGTERM


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_study_on_a_local_cluster_joined_killed_withdrawn_and_failed_ends_with_the_bytes_of_a_local_run(
    tmp_path: Path, trained_locally: dict[str, str]
) -> None:
    listening = open_listeners()
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        project = make_study(tmp_path / "project", dask={"scheduler": cluster.scheduler_address})
        project.run("dvc", "repro", "code", "split")
        scratch = project.root / "scratch"
        obstacle = scratch / folder_of(project, FAILING) / "lock"  # the cell wants to write a file of this name
        obstacle.mkdir(parents=True)
        with launched(project, "--on", "dask", KILLED) as (command, printed):
            stopped = stopped_in_the_middle(scratch, KILLED)
            assert open_listeners() <= listening
            command.terminate()  # taken like Ctrl-C
            assert command.wait() == 130
            text = printed.read_text()
        assert "The cells go on at tcp://" in text and "safeecgmatch.launching.dask` cancels them" in text
        with launched(project, "--on", "dask", KILLED) as (command, printed):
            wait_for(lambda: "On the scheduler already: 1 of the cells" in printed.read_text())
            assert "Cells withdrawn: 1," in project.run(sys.executable, "-m", "safeecgmatch.launching.dask")
            os.kill(stopped, signal.SIGCONT)
            assert command.wait() == 1
            assert "cancelled on the scheduler" in printed.read_text()
        wait_for(lambda: not processes(str(scratch / KILLED)), seconds=60)
        assert list((scratch / KILLED).glob("*/checkpoint.pt"))
        with launched(project, "--on", "dask") as (command, printed):
            stopped = stopped_in_the_middle(scratch, REQUEUED)
            os.kill(parent(stopped), signal.SIGKILL)
            os.kill(stopped, signal.SIGCONT)
            assert command.wait() == 1
            text = printed.read_text()
        assert f"{FAILING} failed (exit status 1); the end of" in text and "IsADirectoryError" in text
        count = len(trained_locally) - 1  # the last is metrics.csv
        assert f"1 of {count} cells failed" in text and text.count("taken over from scratch") == count - 1
        obstacle.rmdir()
        assert f"{count} training cells, 1 of them to be trained." in project.safeecgmatch("run", "--on", "dask")
    assert outputs(project) == trained_locally
    assert stages_run(project.run("dvc", "repro")) == []
