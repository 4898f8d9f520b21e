"""The micro study on two Dask workers that share no folder, with one of them killed in mid-cell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launching.study import (
    FAILING,
    IN_THE_MIDDLE,
    KILLED,
    folder_of,
    iteration,
    launched,
    make_study,
    open_listeners,
    outputs,
    processes,
    stopped_in_the_middle,
    wait_for,
)
from tests.micro import stages_run
from tests.slurm.cluster import answers, free_ports

pytest.importorskip("distributed", reason="the extra 'dask' is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


class Workers:
    """A scheduler and workers with nannies, each in a folder of its own, on loopback."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_ports("scheduler")["scheduler"]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self.start("scheduler", "--port", str(self.port), "--dashboard-address", "127.0.0.1:0")
        wait_for(lambda: answers(self.port))

    def start(self, kind: str, *options: str, name: str = "") -> None:
        folder = self.folder / (name or kind)
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", "--host", "127.0.0.1", *options]
        with (folder / "log").open("ab") as log:
            self.started[name or kind] = subprocess.Popen(
                command, cwd=folder, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def start_worker(self, name: str) -> None:
        options = [
            "--nthreads",
            "1",
            "--dashboard-address",
            "127.0.0.1:0",
            "--local-directory",
            str(self.folder / name),
        ]
        self.start("worker", self.address, *options, name=name)

    def scratch(self, name: str) -> Path:
        return self.folder / name / "dask-scratch-space" / "safeecgmatch" / "scratch"

    def kill(self, name: str) -> None:
        """-9 to the nanny and to its worker, at once, as when a machine dies."""
        nanny = self.started[name].pid
        children = Path(f"/proc/{nanny}/task/{nanny}/children").read_text().split()
        for pid in (nanny, *map(int, children)):
            os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        for process in reversed(self.started.values()):
            process.terminate()
            process.wait()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(tmp_path / "cluster")
    yield workers
    workers.stop()


def test_a_killed_workers_cell_runs_elsewhere_a_failed_one_is_told_and_all_bytes_are_those_of_a_local_run(
    workers: Workers, tmp_path: Path, trained_locally: dict[str, str]
) -> None:
    listening = open_listeners()
    project = make_study(tmp_path / "project", dask={"scheduler": workers.address})
    project.run("dvc", "repro", "code", "split")
    obstacle = Path(folder_of(project, FAILING), "lock")  # the cell wants to write a file of this name
    for name in ("one", "two"):
        (workers.scratch(name) / obstacle).mkdir(parents=True)
        workers.start_worker(name)
    with launched(project, "--on", "dask") as (process, printed):
        doomed = workers.scratch("two")

        def in_the_middle() -> bool:
            return any(
                iteration(doomed, str(file.parents[1].relative_to(doomed))) >= IN_THE_MIDDLE for file in progress()
            )

        def progress() -> list[Path]:
            return list(doomed.glob("*/*/*/*/*/progress.json"))

        wait_for(in_the_middle)
        assert open_listeners() <= listening
        workers.kill("two")
        wait_for(lambda: not processes(str(workers.folder / "two")), seconds=30)
        assert process.wait() == 1
        text = printed.read_text()
    assert f"{FAILING} failed (exit status 1); the end of" in text and "IsADirectoryError" in text
    assert text.count("taken over from scratch") == 4 and "1 of 5 cells failed" in text
    (workers.scratch("one") / obstacle).rmdir()
    assert "5 training cells, 1 of them to be trained." in project.safeecgmatch("run", "--on", "dask")
    assert outputs(project) == trained_locally
    assert stages_run(project.run("dvc", "repro")) == []


def test_an_interrupted_command_joins_its_cells_and_inputs_come_from_a_remote_of_dvc(
    workers: Workers, tmp_path: Path, trained_locally: dict[str, str]
) -> None:
    project = make_study(tmp_path / "project", dask={"scheduler": workers.address})
    project.run("dvc", "remote", "add", "--default", "store", str(tmp_path / "remote"))
    project.run("dvc", "repro", "code", "split")
    project.run("dvc", "push", "filter", "split")
    workers.start_worker("one")
    with launched(project, "--on", "dask", KILLED) as (process, printed):
        wait_for(lambda: iteration(workers.scratch("one"), KILLED) >= IN_THE_MIDDLE)
        process.terminate()  # taken like Ctrl-C
        assert process.wait() == 130
        text = printed.read_text()
    assert "The cells go on at" in text and "safeecgmatch.launching.dask` cancels them" in text
    joined = project.safeecgmatch("run", "--on", "dask", KILLED)
    assert "On the scheduler already: 1 of the cells; nothing is submitted twice." in joined
    assert outputs(project) == {f"runs/{KILLED}": trained_locally[f"runs/{KILLED}"]}
    log = (workers.folder / "one" / "log").read_text()
    assert log.count("'complete'") == 1  # the snapshot; the data came from the remote


def test_a_cancelled_cell_stops_on_its_worker(workers: Workers, tmp_path: Path) -> None:
    project = make_study(tmp_path / "project", dask={"scheduler": workers.address})
    workers.start_worker("one")
    with launched(project, "--on", "dask", KILLED) as (process, printed):
        stopped = stopped_in_the_middle(workers.scratch("one"), KILLED)
        cancelled = project.run(sys.executable, "-m", "safeecgmatch.launching.dask")
        assert "Cells withdrawn: 1," in cancelled
        os.kill(stopped, signal.SIGCONT)
        assert process.wait() == 1
        assert "cancelled on the scheduler" in printed.read_text()
    wait_for(lambda: not processes(str(workers.scratch("one") / KILLED)), seconds=60)
    assert list(workers.scratch("one").glob("*/*/*/*/*/checkpoint.pt"))
