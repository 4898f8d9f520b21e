"""Fixtures of the tests that obtain or read an archive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from safeecgmatch.data import http
from tests.data.http_server import FaultyServer, serving


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAFEECGMATCH_DATA", str(tmp_path / "raw"))
    return tmp_path / "raw"


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return tmp_path / "manifests" / "ptbxl.csv"


@pytest.fixture
def faulty_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    """Without files; whoever fetches from it waits little between tries."""
    monkeypatch.setattr(http, "FIRST_WAIT", 0.01)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as server:
        yield server
