"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def material() -> Path:
    """The folder with the paper and the real ECGs; tests that need it are marked `real`."""
    folder = Path(os.environ.get("SAFEECGMATCH_MATERIAL", ROOT.parent / "shared"))
    if not (folder / "data" / "make_mirror.py").is_file():
        pytest.skip(f"no real ECGs at {folder}; set SAFEECGMATCH_MATERIAL to use them")
    return folder
