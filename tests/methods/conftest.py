from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch

from safeecgmatch.engine.loop import Training
from tests.methods.tagged import tagged_training


@pytest.fixture
def tagged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Training]]:
    """`tagged_training` in double precision."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield partial(tagged_training, monkeypatch)
    torch.set_default_dtype(usual)
