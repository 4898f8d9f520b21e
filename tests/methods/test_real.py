"""On the real PTB-XL a short training on the paper's 150 labels gets well above chance."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from safeecgmatch.data.filtering import filter_dataset
from tests.methods.harness import learn, real_store

pytestmark = [pytest.mark.real, pytest.mark.slow]
# ECGMatch's teacher lags so far behind a fast student that it turns constant; a calmer student gets over it. The four
# open-set baselines had 0.70 to 0.78; faster (the demo's schedule) 0.54 to 0.72.
CALM = {"iterations": 300, "epoch": 50, "learning_rate": 0.003}
# Chance is 1/3. Nine runs (seeds 1 to 3 of TS-TFC and ECGMatch under `release`, seed 1 of all three under `paper`) had
# a mean of 0.63 with a standard deviation of 0.06, the lowest 0.53: this is three of them below. On 45 labels, what the
# published code trains (labels alone, in these methods) is not clearly above chance (0.41 and 0.43), nor are IOMatch
# and Adello.
LEAST = 0.45
CELLS = [(name, protocol, train) for name, train in (("ecgmatch", CALM), ("tstfc", {}), ("complematch", {}))
         for protocol in ("paper", "release")]  # fmt: skip
CELLS += [(name, "paper", CALM) for name in ("iomatch", "scomatch", "safestudent", "adello")]


@pytest.mark.parametrize(("name", "protocol", "train"), CELLS)
def test_learns_on_ptbxl(name: str, protocol: str, train: dict[str, Any], material: Path) -> None:
    metrics, _ = learn(name, protocol, data=real_store(material), labels=50, **train)
    assert metrics["balanced_accuracy"] >= LEAST


def test_supervised_learns_what_it_should(ptbxl_mirror: Path, tmp_path: Path) -> None:
    """Always guessing NORM gives a balanced accuracy of 0.333 and an accuracy of 0.681."""
    data = tmp_path / "data"
    filter_dataset("ptbxl", ptbxl_mirror, data / "filtered" / "ptbxl", 100, "none")
    budget = {"iterations": 500, "epoch": 100, "batch": 64, "learning_rate": 0.001, "width": 16}
    scores = []
    for seed in (1, 2, 3):
        metrics, training = learn("supervised", data=data, ood=30, seed=seed, labels=50, pool=14850, **budget)
        scores.append(metrics["balanced_accuracy"])
        curve = [round(row["val_accuracy"], 3) for row in training.history]
        print(f"seed {seed}: {metrics['balanced_accuracy']:.3f}, accuracy {metrics['acc']:.3f}, validation {curve}")
    assert statistics.mean(scores) >= 0.62
