"""Fixtures of the tests that obtain or read an archive."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAFEECGMATCH_DATA", str(tmp_path / "raw"))
    return tmp_path / "raw"


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return tmp_path / "manifests" / "ptbxl.csv"
