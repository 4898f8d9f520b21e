from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from tests.methods.oracle import Probe, Tagged


@pytest.fixture
def tagged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tagged]:
    """In double precision."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield Tagged(monkeypatch)
    torch.set_default_dtype(usual)


@pytest.fixture
def unit_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backbone's features have length 1, as those of the time-series methods, whose cosines rely on it."""
    raw = Probe.features
    monkeypatch.setattr(Probe, "features", lambda self, x: F.normalize(raw(self, x), dim=1))
