"""The time-series baselines on part of the real PTB-XL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.methods.harness import learn
from tests.methods.real import real_store


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["paper", "release"])
@pytest.mark.parametrize("name", ["ecgmatch", "tstfc", "complematch"])
def test_learns_on_ptbxl(name: str, protocol: str, material: Path) -> None:
    metrics, _ = learn(name, protocol, data=real_store(material))
    assert metrics["balanced_accuracy"] > 0.45  # a guess has 0.33
