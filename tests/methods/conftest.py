from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from safeecgmatch.engine.loop import Training
from tests.methods.oracle import Probe, tagged_training


@pytest.fixture
def tagged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Training]]:
    """`tagged_training` in double precision."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield partial(tagged_training, monkeypatch)
    torch.set_default_dtype(usual)


@pytest.fixture
def unit_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backbone's features have length 1, as those of the time-series methods, whose cosines rely on it."""
    raw = Probe.features
    monkeypatch.setattr(Probe, "features", lambda self, x: F.normalize(raw(self, x), dim=1))
