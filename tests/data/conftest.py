"""Fixtures of the tests that obtain or read an archive."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAFEECGMATCH_DATA", str(tmp_path / "raw"))
    return tmp_path / "raw"


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return tmp_path / "manifests" / "ptbxl.csv"


def build_mirror(material: Path, dataset: str, target: Path) -> Path:
    """The real archive, rebuilt in the layout of PhysioNet by the script that comes with it."""
    script = material / "data" / "make_mirror.py"
    subprocess.run([sys.executable, str(script), dataset, str(target)], check=True, capture_output=True)
    return target


@pytest.fixture(scope="session")
def cinc21_mirror(material: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_mirror(material, "cinc21", tmp_path_factory.mktemp("mirror") / "cinc21")


@pytest.fixture(scope="session")
def ptbxl_mirror(material: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16,244 records at 100 Hz: takes half a minute, so the tests that use it are `slow`."""
    return build_mirror(material, "ptbxl", tmp_path_factory.mktemp("mirror") / "ptbxl")
