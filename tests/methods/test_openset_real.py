"""The open-set baselines on real ECGs: a short training on 45 labelled records gets well above chance."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.methods.harness import learn, real_store


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("name", ["iomatch", "scomatch", "safestudent", "adello"])
def test_learns_on_ptbxl(name: str, material: Path) -> None:
    metrics, training = learn(name, "paper", data=real_store(material))
    assert metrics["balanced_accuracy"] >= 0.45  # chance is 1/3
    assert training.best is not None and training.best.accuracy >= 0.5
