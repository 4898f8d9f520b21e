"""Tracking: what a run holds, and what happens when MLflow is slow, dead, lost, or asked by many at once."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import md5
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from safeecgmatch.files import digest_of, read_json, write_json
from safeecgmatch.launching.adoption import adopt
from safeecgmatch.launching.scratch import Scratch
from safeecgmatch.tracking import uploader
from safeecgmatch.tracking.address import child_environment, ensure_store, tracking_uri
from safeecgmatch.tracking.record import (
    CUT_MARK,
    LONGEST_VALUE,
    Cost,
    finished_record,
    flat,
    git_state,
    numbers,
    run_record,
    tags,
)
from safeecgmatch.tracking.uploader import Following, backfill

STEPS = (50, 100, 150)
WEIGHTS = b"weights"
EXPERIMENT = "safeecgmatch-demo-paper"
METRICS = {"acc": 0.5, "ece": 0.125, "auroc": None}


def make_config(path: str, config_hash: str = "abc") -> dict[str, Any]:
    dataset, method, ood, seed = path.split("/")
    cell = {"dataset": dataset, "method": method, "ood": int(ood), "seed": int(seed)}
    return {
        "cell": cell | {"variant": "full", "lambda_sum": None},
        "protocol": "paper",
        "module": method,
        "train": {"batch": 32, "threads": 1},
        "switches": {"lengths": [1, 2]},
        "data": {"hash": "d"},
        "config_hash": config_hash,
        "fingerprint": f"print-{config_hash}",
    }


def make_record(config: dict[str, Any], path: str, uid: str = "u") -> dict[str, Any]:
    return run_record(
        config,
        profile="demo",
        path=path,
        stage="train@x",
        code={},
        device="cpu",
        uid=uid,
        origin=("c0ffee", True),
    )


class Training:
    """Writes the files of a cell as its training does, with nothing learnt."""

    def __init__(self, path: str, config_hash: str = "abc", uid: str | None = None) -> None:
        self.path, self.config = path, make_config(path, config_hash)
        self.scratch = Scratch.of(path, self.config["fingerprint"])
        self.folder = self.scratch.folder
        self.record = make_record(self.config, path, uid or uuid.uuid4().hex)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.scratch.config.write_text(yaml.safe_dump(self.config))
        write_json(self.scratch.record, self.record)

    def evaluate(self, *steps: int, file: Path | None = None) -> None:
        lines = [f"{step},{step / 1000},{'' if step == 50 else 0.25}" for step in steps]
        text = "\n".join(["iteration,val_accuracy,mask_rate", *lines]) + "\n"
        (file or self.scratch.history).write_text(text)

    def finish(self, diverged: bool = False) -> None:
        with self.scratch.sealing(self.config["fingerprint"]) as folder:
            outputs = folder / "run"
            outputs.mkdir()
            shutil.copy(self.scratch.config, outputs / "config.yaml")
            self.evaluate(*STEPS, file=outputs / "history.csv")
            record = finished_record(self.record, {} if diverged else METRICS, Cost(3.0, 2.5), 150, None)
            if not diverged:
                generator = np.random.default_rng(1)
                log_probs = np.log(generator.dirichlet([1, 1, 1], 100)).astype(np.float32)
                arrays = {"test.log_probs.main": log_probs, "test.label": generator.integers(0, 3, 100)}
                np.savez(outputs / "predictions.npz", branch=np.array("main"), **arrays)
                (outputs / "model.safetensors").write_bytes(WEIGHTS)
                record["weights_md5"] = digest_of(outputs / "model.safetensors", "md5")
            write_json(folder / "run.json", record)

    def adopt(self) -> dict[str, Any]:
        adopted, sentence = adopt(self.path, self.config)
        assert adopted, sentence
        return read_json(Path("tracking", self.path, "run.json"))


def log_cell(path: str, config_hash: str = "abc") -> dict[str, Any]:
    """A cell that is followed from its beginning to its end; its run.json."""
    with Following() as following:
        training = Training(path, config_hash)
        following.follow(training.folder)
        training.evaluate(*STEPS)
        training.finish()
    return training.adopt()


def eventually(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 400
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def runs() -> list[Any]:
    from safeecgmatch.tracking.store import Store

    return Store().runs(EXPERIMENT, "")


def history(run_id: str, name: str) -> dict[int, float]:
    from safeecgmatch.tracking.store import Store

    return {point.step: point.value for point in Store().client.get_metric_history(run_id, name)}


def assert_complete(run: Any) -> None:
    from safeecgmatch.tracking.store import Store

    assert run.info.status == "FINISHED"
    assert run.data.metrics["test.acc"] == 0.5 and run.data.metrics["test.ece"] == 0.125
    assert "test.auroc" not in run.data.metrics and "iteration" not in run.data.metrics
    cost = {"wall_seconds": 3.0, "cpu_seconds": 2.5, "iterations_per_second": 50.0}
    assert cost.items() <= run.data.metrics.items()
    assert history(run.info.run_id, "val_accuracy") == {50: 0.05, 100: 0.1, 150: 0.15}
    assert history(run.info.run_id, "mask_rate") == {100: 0.25, 150: 0.25}
    params = run.data.params
    assert params["train.batch"] == "32" and params["switches.lengths"] == "[1, 2]" and params["profile"] == "demo"
    assert run.data.tags["branch"] == "main" and run.data.tags["weights_md5"] == md5(WEIGHTS).hexdigest()
    artifacts = {artifact.path for artifact in Store().client.list_artifacts(run.info.run_id)}
    assert artifacts == {"config.yaml", "reliability.png"}


@pytest.fixture(scope="session")
def fresh_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DVC_ROOT", str(folder))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        ensure_store()
    return folder


@pytest.fixture
def project(tmp_path: Path, fresh_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project with a store, as the current folder."""
    shutil.copytree(fresh_store, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "DVC_ROOT", "DVC_EXP_NAME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_params_are_flattened_and_long_values_cut() -> None:
    params = flat({"a": {"b": 1, "c": [1, "x"]}, "d": None, "long": "x" * 9000, "k" * 400: True})
    assert params["a.b"] == "1" and params["a.c"] == '[1, "x"]' and params["d"] == "null"
    assert len(params["long"]) == LONGEST_VALUE and params["long"].endswith(CUT_MARK)
    assert params["k" * 250] == "true"


def test_undefined_metrics_are_left_out() -> None:
    assert numbers({"a": None, "b": "", "c": float("nan"), "d": np.float32(0.5), "e": "2", "f": 1}) == {
        "d": 0.5,
        "e": 2.0,
        "f": 1.0,
    }


def test_dirty_means_edited_code(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    assert git_state(tmp_path) == ("", False)
    git("init")
    for name in ("code.py", "dvc.lock", "params.yaml"):
        (tmp_path / name).write_text("1")
    git("add", ".")
    git("commit", "-m", "first")
    commit, dirty = git_state(tmp_path)
    assert len(commit) == 40 and not dirty
    for name in ("dvc.lock", "params.yaml"):
        (tmp_path / name).write_text("2")
        assert git_state(tmp_path) == (commit, False)
    (tmp_path / "code.py").write_text("2")
    assert git_state(tmp_path) == (commit, True)


def test_tags_name_everything_one_searches_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_EXP_NAME", "sunny-dog")
    path = "ptbxl/fixmatch/30/1"
    assert tags(make_record(make_config(path), path)) == {
        "dataset": "ptbxl",
        "method": "fixmatch",
        "ood": "30",
        "seed": "1",
        "variant": "full",
        "lambda_sum": "",
        "cell": path,
        "cell_uid": "u",
        "profile": "demo",
        "protocol": "paper",
        "dvc_stage": "train@x",
        "dvc_exp_name": "sunny-dog",
        "dvc_exp_baseline_rev": "",
        "git_commit": "c0ffee-dirty",
        "config_hash": "abc",
        "data_hash": "d",
        "device": "cpu",
    }


def test_the_store_follows_dvc_root_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert tracking_uri() == f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert tracking_uri() == "http://127.0.0.1:5000"
    ensure_store()  # a server's store is its own business
    assert not list(tmp_path.iterdir())


def test_a_cell_is_one_run_that_grows_is_stopped_goes_on_and_is_complete(project: Path) -> None:
    with Following() as following:
        first = Training("ptbxl/fixmatch/30/1")
        following.follow(first.folder)
        first.evaluate(50)
        eventually(lambda: runs() and runs()[0].data.metrics, "the history is not followed while it grows")
        [run] = runs()
        assert run.info.status == "RUNNING" and history(run.info.run_id, "val_accuracy") == {50: 0.05}
    assert [run.info.status for run in runs()] == ["KILLED"]
    with Following() as following:
        second = Training(first.path, uid=first.scratch.uid())
        following.follow(second.folder)
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


def test_a_run_whose_creation_went_unanswered_is_found_again(project: Path) -> None:
    from safeecgmatch.tracking.store import Store

    config = make_config("ptbxl/fixmatch/30/1")
    record = make_record(config, "ptbxl/fixmatch/30/1")
    assert Store().open_run(record, config) == Store().open_run(record, config)
    assert len(runs()) == 1


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
    assert run.info.status == "FINISHED" and run.data.tags["diverged"] == "true" and "test.acc" not in run.data.metrics


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
    follower = uploader.Follower(Store())
    follower.add(bad.folder)
    follower.add(good.folder)
    assert not follower.look()
    assert "MLflow: JSONDecodeError" in capsys.readouterr().err
    monkeypatch.setattr(uploader, "SECONDS_AFTER_TROUBLE", 0.0)
    follower.not_before = 0.0
    follower.look()
    assert [run.info.status for run in runs()] == ["FINISHED"]


@pytest.mark.slow
def test_four_cells_at_once_on_a_fresh_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    code = "from tests.test_tracking import log_cell; import sys; sys.exit(not log_cell(sys.argv[1])['logged'])"
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
    environment = {name: value for name, value in child_environment().items() if name != "MLFLOW_TRACKING_URI"}
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
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
    # The server is on this machine, which may be as slow as it likes.
    monkeypatch.setattr(uploader, "IMPATIENCE", {"MLFLOW_HTTP_REQUEST_TIMEOUT": "60"})
    with server(project, port) as process, Following() as following:
        training = Training("ptbxl/fixmatch/30/1")
        following.follow(training.folder)
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
