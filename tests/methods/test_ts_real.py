"""The time-series baselines on real ECGs: a short training on the paper's 150 labels gets well above chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.methods.harness import learn, real_store

# ECGMatch's teacher lags so far behind a fast student that it turns constant; a calmer student gets over it.
SLOWER: dict[str, Any] = {"iterations": 300, "epoch": 50, "learning_rate": 0.003}
# Chance is 1/3. Nine runs (seeds 1 to 3 of TS-TFC and ECGMatch under `release`, seed 1 of all three under `paper`) had
# a mean of 0.63 with a standard deviation of 0.06, the lowest 0.53: this is three of them below. On 45 labels, what the
# published code trains (labels alone, in these methods) is not clearly above chance: 0.41 and 0.43.
LEAST = 0.45


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["paper", "release"])
@pytest.mark.parametrize(("name", "train"), [("ecgmatch", SLOWER), ("tstfc", {}), ("complematch", {})])
def test_learns_on_ptbxl(name: str, train: dict[str, Any], protocol: str, material: Path) -> None:
    metrics, _ = learn(name, protocol, data=real_store(material), labels=50, **train)
    assert metrics["balanced_accuracy"] >= LEAST
