"""CompleMatch, the faithful variant."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.methods.harness import all_losses, toy_training


def test_views_of_a_record_are_the_same_in_every_iteration() -> None:
    method: Any = toy_training("complematch", "paper").method
    x = torch.randn(3, 2, 64, generator=torch.Generator().manual_seed(0))
    records = torch.tensor([7, 8, 7])
    first, later = method._views(x, records, 0), method._views(x.flip(0), records.flip(0), 9)
    for branch in ("time", "freq"):
        assert [part.shape for part in first[branch]] == [part.shape for part in later[branch]]
        for view in (1, 2):
            assert torch.equal(first[branch][view], later[branch][view].flip(0))
        assert not torch.equal(first[branch][0], later[branch][0].flip(0))  # the main view is drawn anew
    copies = method._views(x[:1].expand(3, -1, -1), records, 0)
    assert torch.equal(copies["time"][2][0], copies["time"][2][2])
    assert not torch.equal(copies["time"][2][0], copies["time"][2][1])
    fresh: Any = toy_training("complematch", "paper", switches={"static_views": False}).method
    assert not torch.equal(fresh._views(x, records, 0)["freq"][2], fresh._views(x, records, 1)["freq"][2])


def test_dropped_share_of_bins() -> None:
    method: Any = toy_training("complematch", "paper").method
    x = torch.randn(200, 2, 64, generator=torch.Generator().manual_seed(0))
    inputs = method._views(x, torch.arange(200), 0)
    original = torch.fft.rfft(x)
    amplitude = torch.hypot(original.real + 1e-6, original.imag + 1e-6)
    dropped = inputs["freq"][2][:, 0::2] != amplitude
    assert not dropped[..., 0].any()
    assert abs(float(dropped[..., 1:].double().mean()) - 0.1) < 0.01


@pytest.mark.parametrize("option", [{"time_view": "magnitude_warp", "warp_std": 0.05}, {"simclr_temperature": 0.1}])
def test_options_run(option: dict[str, Any]) -> None:
    assert len(all_losses(toy_training("complematch", "paper", switches=option), 20)) == 2
