"""Real records: the bytes of the training from 100 Hz files, and nearly always the same class from 500 Hz files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from safeecgmatch.data.filtering import filter_dataset
from safeecgmatch.predicting.running import Question, read_portions
from safeecgmatch.predicting.trained import Trained
from tests.methods.harness import split_data
from tests.predicting.conftest import train_cell
from tests.predicting.test_trained import assert_same_bytes

pytestmark = [pytest.mark.real, pytest.mark.slow]

BUDGET = {"iterations": 300, "epoch": 50, "batch": 64, "learning_rate": 0.001}


def classes_of(trained: Trained, headers: list[Path]) -> np.ndarray:
    portions = list(read_portions([Question("", header) for header in headers], trained))
    assert not any(portion.bad for portion in portions)
    return np.concatenate([trained.scores(portion.records).log_probs for portion in portions]).argmax(axis=1)


def test_real_records_at_both_rates(ptbxl_mirror: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    filter_dataset("ptbxl", ptbxl_mirror, data / "filtered" / "ptbxl", 100, "none")
    split_data(data, "ptbxl", 60, 1, 50, 14850)
    made = train_cell(data, ptbxl_mirror, tmp_path, "supervised", width=16, **BUDGET)
    for part in ("test", "open_test"):
        assert_same_bytes(made, part)
    trained = Trained.open(made.folder)
    fast = sorted((ptbxl_mirror / "records500").rglob("*.hea"))
    slow = [ptbxl_mirror / "records100" / file.parent.name / file.name.replace("_hr", "_lr") for file in fast]
    classes = classes_of(trained, slow)
    agreement = np.mean(classes == classes_of(trained, fast))
    print(f"{len(fast)} records at both rates: the same class for {agreement:.1%}; class counts {np.bincount(classes)}")
    assert len(fast) == 300 and agreement >= 0.98
    assert len(set(classes.tolist())) == 3
