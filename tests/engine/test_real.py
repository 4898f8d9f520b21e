"""Supervised on the real PTB-XL with the paper's 150 labels: the engine learns what it should."""

from __future__ import annotations

import statistics

import pytest

from safeecgmatch.data.filtering import filter_dataset
from tests.methods.harness import learn


@pytest.mark.real
@pytest.mark.slow
def test_supervised_learns_from_150_real_ecgs(ptbxl_mirror, tmp_path):
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
