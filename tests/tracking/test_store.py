"""Where the store is, and what a run and an experiment hold."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from safeecgmatch.tracking.address import ensure_store, tracking_uri
from safeecgmatch.tracking.store import Store
from tests.tracking.written import EXPERIMENT, make_config, make_record, runs


def test_a_run_whose_creation_went_unanswered_is_found_again(project: Path) -> None:
    config = make_config("ptbxl/fixmatch/30/1")
    record = make_record(config, "ptbxl/fixmatch/30/1")
    assert Store().open_run(record, config) == Store().open_run(record, config)
    assert len(runs()) == 1


def test_an_experiment_says_what_to_look_at_and_opens_for_training(project: Path) -> None:
    Store().experiment(EXPERIMENT)
    tags = Store().client.get_experiment_by_name(EXPERIMENT).tags
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    for word in ("test/acc", "test/ece", "`val/`", "`loss/`", "`pseudo/`", "`temperature/`", "`cost/`", "method"):
        assert word in tags["mlflow.note.content"]


def test_a_store_that_was_moved_says_once_where_its_artifacts_are(
    project: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Store().experiment(EXPERIMENT)
    assert not capsys.readouterr().err
    moved = tmp_path_factory.mktemp("moved")
    shutil.copy(project / "mlflow.db", moved)
    monkeypatch.chdir(moved)
    store = Store()
    for _ in range(2):
        store.experiment(EXPERIMENT)
    told = capsys.readouterr().err
    assert told.count("was copied or moved") == 1 and told.count("\n") == 1
    assert f"{project}/mlartifacts/{EXPERIMENT}" in told and f"{moved}/mlartifacts" in told and "backfill" in told


def test_the_store_follows_dvc_root_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert tracking_uri() == f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert tracking_uri() == "http://127.0.0.1:5000"
    ensure_store()  # a server's store is its own business
    assert not list(tmp_path.iterdir())
