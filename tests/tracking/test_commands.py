"""What goes wrong is told in one sentence with a non-zero exit, and leaves nothing behind."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tracking.written import Training


def refused(*arguments: str, prepare: Callable[[], None] | None = None) -> str:
    """The one line that the command prints on standard error when it fails."""
    command = [sys.executable, "-m", "safeecgmatch.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=prepare)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert done.returncode != 0 and "Traceback" not in done.stderr, done.stderr
    assert [line for line in lines if line.startswith("Error: ")] == lines[-1:], done.stderr
    return lines[-1]


def test_backfill_outside_a_project_makes_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DVC_ROOT", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    assert "params.yaml does not exist" in refused("mlflow", "backfill")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["backfill", "ui"])
def test_an_unknown_scheme(project: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "foo://bar")
    assert "MLFLOW_TRACKING_URI is foo://bar, which MLflow cannot use" in refused("mlflow", command)


def test_a_full_disk(project: Path) -> None:
    """Nothing can be written beyond the first 4 KB of any file."""
    training = Training("ptbxl/fixmatch/60/1")
    training.finish()
    training.adopt()
    sentence = refused("mlflow", "backfill", prepare=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
    assert "The MLflow store sqlite:///" in sentence and "failed: " in sentence


@pytest.mark.parametrize("file", ["tracking/{}/run.json", "runs/{}/predictions.npz"])
def test_a_damaged_file(project: Path, file: str) -> None:
    training = Training("ptbxl/fixmatch/60/1")
    training.finish()
    training.adopt()
    (project / file.format(training.path)).write_text("PK\3\4 the first bytes of a zip")
    sentence = refused("mlflow", "backfill")
    assert "run.json" in sentence and "is damaged" in sentence and "dvc checkout" in sentence


@pytest.mark.parametrize("name", ["a/b:c", "a:b", "a/b", " "])
def test_a_name_that_the_registry_would_refuse(name: str, project: Path) -> None:
    from safeecgmatch.errors import UserError
    from safeecgmatch.tracking.model import log_model

    with pytest.raises(UserError, match="must not be empty nor hold a slash or a colon"):
        log_model("ptbxl/fixmatch/60/1", name)
