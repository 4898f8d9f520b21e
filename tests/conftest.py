"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

from safeecgmatch.tracking.address import ensure_store
from tests.micro import ROOT, Project, micro_study

MOST_WORKERS = 4  # each needs up to 1 GB


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` means; by itself it counts two threads of a core as one, which a small machine cannot afford."""
    return min(os.cpu_count() or 1, MOST_WORKERS)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One temporary folder for all workers of pytest-xdist."""
    temporary = tmp_path_factory.getbasetemp()
    return temporary.parent if "PYTEST_XDIST_WORKER" in os.environ else temporary


@pytest.fixture(scope="session")
def fresh_store(shared_folder: Path) -> Path:
    """A folder with an empty MLflow store, which takes seconds to make."""
    folder = shared_folder / "store"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DVC_ROOT", str(folder))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        ensure_store()
    return folder


@pytest.fixture(scope="session")
def launched(shared_folder: Path, fresh_store: Path) -> tuple[Project, str]:
    """The micro study, run once by the launcher, and what was printed."""
    return micro_study(shared_folder / "micro", fresh_store)


@pytest.fixture(scope="session")
def study(launched: tuple[Project, str]) -> Project:
    """The micro study, to be looked at; a test that changes something takes `project`."""
    return launched[0]


@pytest.fixture
def project(study: Project, tmp_path: Path) -> Project:
    """The test's own copy of the micro study."""
    return study.copy(tmp_path / "project")


@pytest.fixture(scope="session")
def material() -> Path:
    """The folder with the paper and the real ECGs; tests that need it are marked `real`."""
    folder = Path(os.environ.get("SAFEECGMATCH_MATERIAL", ROOT.parent / "shared"))
    if not (folder / "data" / "make_mirror.py").is_file():
        pytest.skip(f"no real ECGs at {folder}; set SAFEECGMATCH_MATERIAL to use them")
    return folder


def build_mirror(material: Path, dataset: str, target: Path, *options: str) -> Path:
    """The real archive, rebuilt in the layout of PhysioNet by the script that comes with it."""
    script = material / "data" / "make_mirror.py"
    subprocess.run([sys.executable, str(script), dataset, str(target), *options], check=True, capture_output=True)
    return target


@pytest.fixture(scope="session")
def cinc21_mirror(material: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_mirror(material, "cinc21", tmp_path_factory.mktemp("mirror") / "cinc21")


@pytest.fixture(scope="session")
def ptbxl_mirror(material: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16,244 records at 100 Hz: takes half a minute, so the tests that use it are `slow`."""
    return build_mirror(material, "ptbxl", tmp_path_factory.mktemp("mirror") / "ptbxl")
