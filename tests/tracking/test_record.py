"""What is known about a run, and how MLflow is told."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from safeecgmatch.tracking.record import (
    CUT_MARK,
    LONGEST_VALUE,
    flat,
    git_state,
    metric_name,
    numbers,
    params,
    run_name,
    tags,
)
from tests.tracking.written import make_config, make_record


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
        "arm": "",
        "role": "main",
        "cell": path,
        "cell_uid": "u",
        "profile": "demo",
        "protocol": "paper",
        "dvc_stage": "train@x",
        "dvc_exp_name": "sunny-dog",
        "dvc_exp_baseline_rev": "",
        "mlflow.source.name": "stages/train.py",
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": "c0ffee",
        "mlflow.source.git.dirty": "true",
        "config_hash": "abc",
        "fingerprint": "print-abc",
        "data_hash": "d",
        "device": "cpu",
    }


def test_runs_of_a_sweep_are_not_called_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "ptbxl/fixmatch/30/1"
    assert run_name(make_record(make_config(path), path)) == path
    monkeypatch.setenv("DVC_EXP_NAME", "sunny-dog")
    assert run_name(make_record(make_config(path), path)) == f"{path} sunny-dog"


def test_hashes_are_no_params() -> None:
    found = params(make_config("ptbxl/fixmatch/30/1"), "demo")
    assert found["data.sampling_rate"] == "100" and found["profile"] == "demo" and found["cell.method"] == "fixmatch"
    assert not {"config_hash", "fingerprint", "data.hash"}.intersection(found)


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("val_accuracy", "val/accuracy"),
        ("competes", "val/competes"),
        ("warnings", "val/warnings"),
        ("teacher_accuracy", "val/teacher_accuracy"),
        ("loss.total", "loss/total"),
        ("temperature.class.time", "temperature/class.time"),
        ("mask_rate", "pseudo/mask_rate"),
        ("mask_rate.freq", "pseudo/mask_rate.freq"),
        ("pseudo_ood_share", "pseudo/ood_share"),
        ("selected_share", "pseudo/selected_share"),
        ("tau_ood", "pseudo/tau_ood"),
        ("prior.0", "pseudo/prior.0"),
    ],
)
def test_every_column_of_the_history_is_in_a_group(column: str, name: str) -> None:
    assert metric_name(column) == name
