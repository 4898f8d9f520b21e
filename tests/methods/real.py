"""Part of the real PTB-XL, filtered once per test session, for short trainings."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from safeecgmatch.data.filtering import filter_dataset
from tests.conftest import build_mirror

RECORDS = 2500  # the first ones; all five classes occur
_FOLDER = tempfile.TemporaryDirectory(prefix="safeecgmatch-real-")


@functools.cache
def real_store(material: Path) -> Path:
    """The `data` folder with single-label records of PTB-XL at 100 Hz."""
    raw, data = Path(_FOLDER.name) / "raw" / "ptbxl", Path(_FOLDER.name) / "data"
    build_mirror(material, "ptbxl", raw, "--limit", str(RECORDS), "--rate", "100")
    filter_dataset("ptbxl", raw, data / "filtered" / "ptbxl", 100, "none", workers=1)
    return data
