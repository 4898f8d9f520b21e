"""The time-series baselines on real ECGs: a short training on 45 labelled records gets well above chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.methods.harness import learn, real_store

# ECGMatch's teacher lags so far behind a fast student that it turns constant; a calmer student gets over it.
SLOWER: dict[str, Any] = {"iterations": 300, "epoch": 50, "learning_rate": 0.003}


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["paper", "release"])
@pytest.mark.parametrize(("name", "train"), [("ecgmatch", SLOWER), ("tstfc", {}), ("complematch", {})])
def test_learns_on_ptbxl(name: str, train: dict[str, Any], protocol: str, material: Path) -> None:
    metrics, _ = learn(name, protocol, data=real_store(material), **train)
    assert metrics["balanced_accuracy"] >= 0.45  # chance is 1/3
