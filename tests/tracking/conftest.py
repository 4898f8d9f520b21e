"""A project with an empty store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT

FROM_THE_ENVIRONMENT = (
    "MLFLOW_TRACKING_URI", "MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "DVC_ROOT", "DVC_EXP_NAME",
)  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, fresh_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with no cell and an empty store, as the current folder."""
    shutil.copytree(fresh_store, tmp_path, dirs_exist_ok=True)
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in FROM_THE_ENVIRONMENT:
        monkeypatch.setenv(name, "")  # so that what the code under test sets is undone too
        monkeypatch.delenv(name)
    return tmp_path
