"""The stages evaluate and tables; tests/test_pipeline.py runs them by DVC."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT


def test_without_cells_there_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "stages" / "evaluate.py"))["main"]()
    assert isinstance(end.value.code, str) and "dvc repro" in end.value.code and "\n" not in end.value.code


def test_stages_are_thin() -> None:
    for stage in ("evaluate", "tables"):
        assert len((ROOT / "stages" / f"{stage}.py").read_text(encoding="utf-8").splitlines()) <= 60
