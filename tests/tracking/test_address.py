"""Where the store is."""

from __future__ import annotations

from pathlib import Path

import pytest

from safeecgmatch.tracking.address import ensure_store, tracking_uri


def test_the_store_follows_dvc_root_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert tracking_uri() == f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert tracking_uri() == "http://127.0.0.1:5000"
    ensure_store()  # a server's store is its own business
    assert not list(tmp_path.iterdir())
