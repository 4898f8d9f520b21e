"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.micro import ROOT, Project, make_project


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The micro study, run by the launcher; a test that changes it puts it back."""
    project = make_project(tmp_path_factory.mktemp("micro") / "project")
    project.first_output = project.safeecgmatch("run", "--jobs", "2")
    project.commit("reproduced")
    return project


@pytest.fixture(scope="session")
def material() -> Path:
    """The folder with the paper and the real ECGs; tests that need it are marked `real`."""
    folder = Path(os.environ.get("SAFEECGMATCH_MATERIAL", ROOT.parent / "shared"))
    if not (folder / "data" / "make_mirror.py").is_file():
        pytest.skip(f"no real ECGs at {folder}; set SAFEECGMATCH_MATERIAL to use them")
    return folder


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
