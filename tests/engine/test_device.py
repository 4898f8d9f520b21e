"""Devices: repeatable arithmetic."""

from __future__ import annotations

import pytest
import torch

from safeecgmatch.engine.device import adam, autocast, fits, prepare
from safeecgmatch.errors import UserError


def test_a_parameter_without_gradient_has_no_state():
    used, unused = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer = adam([used, unused], 0.1)
    used.sum().backward()
    optimizer.step()
    assert used in optimizer.state and unused not in optimizer.state


def test_prepare_makes_arithmetic_deterministic():
    before = torch.get_num_threads()
    assert prepare("cpu", 1).type == "cpu"
    assert torch.are_deterministic_algorithms_enabled() and torch.get_num_threads() == 1
    torch.set_num_threads(before)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_is_one_sentence():
    with pytest.raises(UserError, match=r"train.device is 'cuda', but torch sees no GPU; use 'auto' or 'cpu'"):
        prepare("cuda", 1)
    assert prepare("auto", 1).type == "cpu"


def test_only_a_gpu_holds_the_dataset():
    assert not fits(torch.device("cpu"), 1)


def test_autocast_lowers_the_precision_inside_networks_only_where_asked():
    layer, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    with autocast(torch.device("cpu"), "bf16"):
        assert layer(x).dtype == torch.bfloat16
    with autocast(torch.device("cpu"), "off"):
        assert layer(x).dtype == torch.float32
