"""Tracking: what a run holds, and what happens when MLflow is slow, dead, lost, or asked by many at once."""

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
from hashlib import md5
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from safeecgmatch import tracking
from safeecgmatch.files import write_json
from safeecgmatch.tracking.address import child_environment
from safeecgmatch.tracking.record import CUT_MARK, LONGEST_VALUE, flat, git_state, numbers, tags

STEPS = (50, 100, 150)
WEIGHTS = b"weights"
EXPERIMENT = "safeecgmatch-demo-paper"
METRICS = {"acc": 0.5, "ece": 0.125, "auroc": None}


def write_cell(path: str, config_hash: str = "abc") -> tuple[Path, dict[str, Any]]:
    """The files of a trained cell under the current folder."""
    dataset, method, ood, seed = path.split("/")
    cell = {
        "dataset": dataset,
        "method": method,
        "ood": int(ood),
        "seed": int(seed),
        "variant": "full",
        "lambda_sum": None,
    }
    config = {
        "cell": cell,
        "protocol": "paper",
        "profile": "demo",
        "train": {"batch": 32},
        "switches": {"lengths": [1, 2]},
        "config_hash": config_hash,
    }
    folder = Path("runs", path)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    lines = [
        "iteration,val_accuracy,mask_rate",
        *(f"{step},{step / 1000},{'' if step == 50 else 0.25}" for step in STEPS),
    ]
    (folder / "history.csv").write_text("\n".join(lines) + "\n")
    generator = np.random.default_rng(int(seed))
    log_probs = np.log(generator.dirichlet([1, 1, 1], 100)).astype(np.float32)
    arrays = {"test.log_probs.main": log_probs, "test.label": generator.integers(0, 3, 100), "branch": np.array("main")}
    np.savez(folder / "predictions.npz", **arrays)
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    return folder, config


def start_cell(path: str, uid: str | None = None, config_hash: str = "abc") -> tuple[tracking.Logger, Path]:
    folder, config = write_cell(path, config_hash)
    record = tracking.run_record(config, path=path, data_hash="data", device="cpu", uid=uid)
    return tracking.start(record, config), folder


def evaluate(logger: tracking.Logger, *steps: int) -> None:
    for step in steps:
        logger.evaluation(
            step, {"iteration": step, "val_accuracy": step / 1000, "mask_rate": None if step == 50 else 0.25}
        )


def finish(logger: tracking.Logger, folder: Path) -> tracking.RunResult:
    result = logger.finish(folder, METRICS, wall_seconds=3.0, iterations_per_second=50.0)
    write_json(Path("tracking") / folder.relative_to("runs") / "run.json", result.record)
    return result


def log_cell(path: str, config_hash: str = "abc") -> tracking.RunResult:
    logger, folder = start_cell(path, config_hash=config_hash)
    evaluate(logger, *STEPS)
    return finish(logger, folder)


def runs() -> list[Any]:
    from safeecgmatch.tracking.store import Store

    return Store().runs(EXPERIMENT, "")


def history(run_id: str, name: str) -> dict[int, float]:
    from safeecgmatch.tracking.store import Store

    return {point.step: point.value for point in Store().client.get_metric_history(run_id, name)}


def backfill() -> tuple[int, int]:
    """How many runs were uploaded, and how many were complete."""
    from safeecgmatch.tracking import replay

    return replay.backfill(Path())


def assert_complete(run: Any) -> None:
    from safeecgmatch.tracking.store import Store

    assert run.info.status == "FINISHED"
    assert run.data.metrics["test.acc"] == 0.5 and run.data.metrics["test.ece"] == 0.125
    assert "test.auroc" not in run.data.metrics and "iteration" not in run.data.metrics
    assert run.data.metrics["wall_seconds"] == 3.0 and run.data.metrics["iterations_per_second"] == 50.0
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
        tracking.ensure_store()
    return folder


@pytest.fixture
def project(tmp_path: Path, fresh_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project with a store, as the current folder."""
    shutil.copytree(fresh_store, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "DVC_ROOT", "DVC_EXP_NAME", "SAFEECGMATCH_RECORDER"):
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


def test_dirty_means_edited_by_a_person(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    assert git_state(tmp_path) == ("", False)
    git("init")
    for name in ("code.py", "dvc.lock"):
        (tmp_path / name).write_text("1")
    git("add", ".")
    git("commit", "-m", "first")
    commit, dirty = git_state(tmp_path)
    assert len(commit) == 40 and not dirty
    (tmp_path / "dvc.lock").write_text("2")
    assert git_state(tmp_path) == (commit, False)
    (tmp_path / "code.py").write_text("2")
    assert git_state(tmp_path) == (commit, True)


def test_tags_name_everything_one_searches_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_STAGE", "train@x")
    monkeypatch.setenv("DVC_EXP_NAME", "sunny-dog")
    _, config = write_cell("ptbxl/fixmatch/30/1")
    record = tracking.run_record(config, path="ptbxl/fixmatch/30/1", data_hash="d", device="cpu")
    found = tags(record | {"commit": "c0ffee", "dirty": True})
    expected = {
        "dataset": "ptbxl",
        "method": "fixmatch",
        "ood": "30",
        "seed": "1",
        "variant": "full",
        "lambda_sum": "",
        "cell": "ptbxl/fixmatch/30/1",
        "cell_uid": record["uid"],
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
    assert found == expected


def test_the_store_follows_dvc_root_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert tracking.tracking_uri() == f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert tracking.tracking_uri() == "http://127.0.0.1:5000"
    tracking.ensure_store()  # a server's store is its own business
    assert not list(tmp_path.iterdir())


def test_a_cell_is_one_complete_run(project: Path) -> None:
    result = log_cell("ptbxl/fixmatch/30/1")
    assert result.logged
    [run] = runs()
    assert run.info.run_id == result.run_id == result.record["run_id"]
    assert run.info.run_name == "ptbxl/fixmatch/30/1"
    assert_complete(run)
    assert backfill() == (0, 1)


def test_a_resumed_cell_continues_its_own_run(project: Path) -> None:
    first, _ = start_cell("ptbxl/fixmatch/30/1")
    evaluate(first, 50)
    first.interrupt()
    deadline = time.monotonic() + 60
    while [run.info.status for run in runs()] != ["KILLED"]:
        assert time.monotonic() < deadline, "the interrupted run was not marked"
        time.sleep(0.2)
    second, folder = start_cell("ptbxl/fixmatch/30/1", uid=first.uid)
    evaluate(second, 100, 150)
    result = finish(second, folder)
    [run] = runs()
    assert run.info.run_id == result.run_id == first.run_id
    assert_complete(run)


def test_a_rerun_supersedes_only_its_like(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tracking.shared_recorder() as environment:
        monkeypatch.setenv(*next(iter(environment.items())))
        first = log_cell("ptbxl/fixmatch/30/1")
        log_cell("ptbxl/fixmatch/60/1")
        log_cell("ptbxl/fixmatch/30/1", config_hash="other")
        with monkeypatch.context() as sweep:
            sweep.setenv("DVC_EXP_NAME", "sunny-dog")
            log_cell("ptbxl/fixmatch/30/1")
        assert not [run for run in runs() if "superseded" in run.data.tags]
        again = log_cell("ptbxl/fixmatch/30/1")
    superseded = {run.info.run_id: run.data.tags["superseded"] for run in runs() if "superseded" in run.data.tags}
    assert superseded == {first.run_id: again.run_id}
    assert len(runs()) == 5


def test_a_run_whose_creation_went_unanswered_is_found_again(project: Path) -> None:
    from safeecgmatch.tracking.store import Store

    _, config = write_cell("ptbxl/fixmatch/30/1")
    record = tracking.run_record(config, path="ptbxl/fixmatch/30/1", data_hash="d", device="cpu")
    assert Store().open_run(record, config) == Store().open_run(record, config)
    assert len(runs()) == 1


def test_a_lost_store_is_rebuilt_from_the_files_once(project: Path, fresh_store: Path) -> None:
    log_cell("ptbxl/fixmatch/30/1")
    shutil.copy(fresh_store / "mlflow.db", project / "mlflow.db")
    assert backfill() == (1, 0)
    assert backfill() == (0, 1)
    [run] = runs()
    assert_complete(run)


def test_a_server_that_never_answers_costs_ten_seconds_at_most(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{silent.getsockname()[1]}")
        logger, folder = start_cell("ptbxl/fixmatch/30/1")
        began = time.monotonic()
        evaluate(logger, *STEPS)
        assert time.monotonic() - began < 0.5
        assert logger._ready.wait(120), "mlflow could not be imported"
        began = time.monotonic()
        result = finish(logger, folder)
        assert time.monotonic() - began < 11
    assert not result.logged and result.run_id is None
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert backfill() == (1, 0)
    [run] = runs()
    assert_complete(run)


def test_a_recorder_that_cannot_start_does_not_stop_the_cell(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "mlflow.db").write_text("this is no database, and longer than a header of one hundred bytes" * 3)
    shutil.rmtree(project / "mlartifacts")
    assert not log_cell("ptbxl/fixmatch/30/1").logged
    assert "safeecgmatch mlflow backfill" in capsys.readouterr().err


@pytest.mark.slow
def test_four_cells_at_once_on_a_fresh_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    code = "from tests.test_tracking import log_cell; import sys; sys.exit(not log_cell(sys.argv[1]).logged)"
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
    with server(project, port) as process:
        logger, folder = start_cell("ptbxl/fixmatch/30/1")
        evaluate(logger, 50)
        deadline = time.monotonic() + 120
        while not (logger.run_id and history(logger.run_id, "val_accuracy")):
            assert time.monotonic() < deadline, "the first evaluation did not arrive"
            time.sleep(0.5)
        os.killpg(process.pid, 9)
        process.wait()
        evaluate(logger, 100, 150)
        began = time.monotonic()
        result = finish(logger, folder)
        assert time.monotonic() - began < 11
        assert not result.logged and result.run_id is not None
    # From here on the server is healthy, and the machine may be as slow as it likes.
    monkeypatch.setattr("safeecgmatch.tracking.logger.SECONDS_FOR_THE_SERVER", 120.0)
    monkeypatch.setattr("safeecgmatch.tracking.logger.IMPATIENCE", {"MLFLOW_HTTP_REQUEST_TIMEOUT": "60"})
    with server(project, port):
        assert log_cell("ptbxl/fixmatch/60/1").logged
        assert backfill() == (1, 1)
        assert backfill() == (0, 2)
        assert len(runs()) == 2
        for run in runs():
            assert_complete(run)
        assert result.run_id in {run.info.run_id for run in runs()}
