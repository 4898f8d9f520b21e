"""What happens when MLflow is slow, dead, lost, or asked by many at once; training must not notice."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from safeecgmatch.files import read_json
from safeecgmatch.tracking import uploader
from safeecgmatch.tracking.uploader import Following, Upload, backfill
from tests.tracking.written import STEPS, Training, assert_complete, eventually, history, log_cell, runs


def test_a_cell_is_one_run_that_grows_is_stopped_goes_on_and_is_complete(project: Path) -> None:
    with Following() as following:
        first = Training("ptbxl/fixmatch/30/1")
        following.follow(first.scratch)
        first.evaluate(50)
        eventually(lambda: runs() and runs()[0].data.metrics, "the history is not followed while it grows")
        [run] = runs()
        assert run.info.status == "RUNNING" and history(run.info.run_id, "val/accuracy") == {50: 0.05}
    assert [run.info.status for run in runs()] == ["KILLED"]
    with Following() as following:
        second = Training(first.path, uid=first.scratch.uid())
        following.follow(second.scratch)
        second.evaluate(50, 100)
        second.finish()
    [run] = runs()
    record = second.adopt()
    assert record["run_id"] == run.info.run_id and record["logged"] and run.info.run_name == first.path
    assert_complete(run)
    assert backfill(Path()) == (0, 1)


def test_a_rerun_supersedes_only_its_like(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def log(path: str, config_hash: str) -> dict[str, Any]:
        training = Training(path, config_hash)
        training.finish()
        record = training.adopt()
        backfill(Path())
        return record

    first = log("ptbxl/fixmatch/30/1", "abc")
    log("ptbxl/fixmatch/60/1", "abc")
    log("ptbxl/fixmatch/30/1", "other")
    with monkeypatch.context() as sweep:
        sweep.setenv("DVC_EXP_NAME", "sunny-dog")
        log("ptbxl/fixmatch/30/1", "abc")
    assert not [run for run in runs() if "superseded" in run.data.tags]
    again = log("ptbxl/fixmatch/30/1", "abc")
    uids = {run.info.run_id: run.data.tags["cell_uid"] for run in runs()}
    superseded = {uids[run.info.run_id]: run.data.tags["superseded"] for run in runs() if "superseded" in run.data.tags}
    assert [(uid, uids[by]) for uid, by in superseded.items()] == [(first["uid"], again["uid"])]
    assert len(runs()) == 5


def test_a_lost_store_is_rebuilt_from_the_files_once(project: Path) -> None:
    training = Training("ptbxl/fixmatch/30/1")
    training.finish()
    assert training.adopt() | {"run_id": None, "logged": False} == read_json(
        Path("tracking", training.path, "run.json")
    )
    assert backfill(Path()) == (1, 0)
    assert backfill(Path()) == (0, 1)
    [run] = runs()
    assert_complete(run)


def test_a_diverged_cell_is_a_complete_run_that_says_so(project: Path) -> None:
    training = Training("ptbxl/fixmatch/30/1")
    training.finish(diverged=True)
    training.adopt()
    assert backfill(Path()) == (1, 0)
    [run] = runs()
    assert run.info.status == "FINISHED" and run.data.tags["diverged"] == "true" and "test/acc" not in run.data.metrics


def test_a_server_that_never_answers_costs_its_time_and_no_byte(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert uploader.SECONDS_FOR_THE_SERVER <= 10
    monkeypatch.setattr(uploader, "SECONDS_FOR_THE_SERVER", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{silent.getsockname()[1]}")
        record = log_cell("ptbxl/fixmatch/30/1")
    assert not record["logged"] and record["run_id"] is None
    assert "`safeecgmatch mlflow backfill` uploads what is missing" in capfd.readouterr().err
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert backfill(Path()) == (1, 0)
    [run] = runs()
    assert_complete(run)


def test_a_fault_of_the_follower_is_told_and_stops_no_cell(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (project / "mlflow.db").write_text("this is no database, and longer than a header of one hundred bytes" * 3)
    shutil.rmtree(project / "mlartifacts")
    assert not log_cell("ptbxl/fixmatch/30/1")["logged"]
    told = capfd.readouterr().err
    assert "mlflow.db: the MLflow store cannot be made or migrated" in told and "mlflow backfill" in told


def test_one_bad_cell_is_told_and_keeps_no_other_from_the_store(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from safeecgmatch.tracking.store import Store

    bad, good = Training("ptbxl/fixmatch/30/1"), Training("ptbxl/fixmatch/60/1")
    bad.scratch.record.write_text("{")
    good.finish()
    following = Following()
    following.uploads = [Upload(cell.scratch) for cell in (bad, good)]
    assert not following.look(Store())
    assert "record.json is damaged" in capsys.readouterr().err
    monkeypatch.setattr(uploader, "SECONDS_AFTER_TROUBLE", 0.0)
    following.not_before = 0.0
    following.look(Store())
    assert [run.info.status for run in runs()] == ["FINISHED"]


@pytest.mark.slow
def test_four_cells_at_once_on_a_fresh_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    code = "from tests.tracking.written import log_cell; import sys; sys.exit(not log_cell(sys.argv[1])['logged'])"
    paths = [f"ptbxl/fixmatch/30/{seed}" for seed in (1, 2, 3, 4)]
    cells = [subprocess.Popen([sys.executable, "-c", code, path]) for path in paths]
    assert [cell.wait() for cell in cells] == [0, 0, 0, 0]
    assert sorted(run.info.run_name for run in runs()) == paths
    for run in runs():
        assert_complete(run)


@contextmanager
def server(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    stores = ["--backend-store-uri", f"sqlite:///{folder}/server.db", "--artifacts-destination", str(folder / "files")]
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen([*command, *stores], env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 180
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
            except OSError:
                assert time.monotonic() < deadline and process.poll() is None, (folder / "server.log").read_text()
                time.sleep(0.5)
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
        process.wait()


@pytest.mark.slow
def test_a_server_that_dies_in_the_middle_of_a_cell(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")  # it is on this machine, which may be as slow as it likes
    with server(project, port) as process, Following() as following:
        training = Training("ptbxl/fixmatch/30/1")
        following.follow(training.scratch)
        training.evaluate(50)
        eventually(lambda: runs() and runs()[0].data.metrics, "the first evaluation did not arrive")
        os.killpg(process.pid, 9)
        process.wait()
        training.evaluate(*STEPS)
        training.finish()
    record = training.adopt()
    assert not record["logged"] and record["run_id"] is not None
    monkeypatch.setattr(uploader, "SECONDS_FOR_THE_SERVER", 120.0)
    with server(project, port):
        assert log_cell("ptbxl/fixmatch/60/1")["logged"]
        assert backfill(Path()) == (1, 1)
        assert backfill(Path()) == (0, 2)
        assert len(runs()) == 2
        for run in runs():
            assert_complete(run)
        assert record["run_id"] in {run.info.run_id for run in runs()}
