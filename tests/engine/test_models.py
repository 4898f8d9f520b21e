"""The backbone: the paper's size, Conv1d's numbers, unit-norm features."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from safeecgmatch.engine.models import Conv, ResNet1D, parameter_count


def test_the_papers_parameter_count():
    network = ResNet1D(12, 3, 64)
    assert parameter_count(network) == 3_850_371
    assert sum(buffer.numel() for buffer in network.buffers()) == 9_620


@pytest.mark.parametrize(("kernel", "stride"), [(7, 2), (3, 1), (3, 2), (1, 2)])
def test_a_convolution_equals_conv1d(kernel, stride):
    conv = Conv(5, 4, kernel, stride)
    x = torch.randn(3, 5, 101)
    expected = F.conv1d(x, conv.weight, stride=stride, padding=kernel // 2)
    assert torch.allclose(conv(x.unsqueeze(2)).squeeze(2), expected, atol=1e-5)
    assert conv.weight.shape == (4, 5, kernel), "files keep Conv1d shapes"
    assert conv.weight.unsqueeze(2).is_contiguous(memory_format=torch.channels_last)


def test_initialisation_is_that_of_conv1d():
    torch.manual_seed(3)
    ours = Conv(12, 8, 7)
    torch.manual_seed(3)
    assert torch.equal(ours.weight, nn.Conv1d(12, 8, 7, bias=False).weight)


def plain_reference(network: ResNet1D, x: torch.Tensor) -> torch.Tensor:
    """The same network written with Conv1d and BatchNorm1d functions, from its saved weights alone."""
    state = network.state_dict()

    def conv(name: str, y: torch.Tensor, stride: int = 1) -> torch.Tensor:
        weight = state[f"{name}.weight"]
        return F.conv1d(y, weight, stride=stride, padding=weight.shape[-1] // 2)

    def norm(name: str, y: torch.Tensor) -> torch.Tensor:
        moments = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        return F.batch_norm(y, *moments, state[f"{name}.weight"], state[f"{name}.bias"], eps=1e-5)

    y = F.max_pool1d(F.relu(norm("stem_bn", conv("stem", x, 2))), 3, 2, 1)
    for number in range(8):
        stride, block = (2 if number in (2, 4, 6) else 1), f"blocks.{number}"
        z = F.relu(norm(f"{block}.bn1", conv(f"{block}.conv1", y, stride)))
        shortcut = norm(f"{block}.shortcut.1", conv(f"{block}.shortcut.0", y, 2)) if stride == 2 else y
        y = F.relu(norm(f"{block}.bn2", conv(f"{block}.conv2", z)) + shortcut)
    u = y.mean(dim=-1)
    return u / u.norm(dim=1, keepdim=True).clamp(min=1e-12) @ state["fc.weight"].T + state["fc.bias"]


def test_the_network_equals_its_conv1d_reference():
    network = ResNet1D(12, 3, 4).eval()
    x = torch.randn(5, 12, 500)
    assert torch.allclose(network(x), plain_reference(network, x), atol=1e-5)


@pytest.mark.parametrize("samples", [5000, 2501])
def test_features_have_unit_norm_and_are_not_negative(samples):
    network = ResNet1D(12, 3, 4)
    features = network.features(torch.randn(4, 12, samples))
    assert features.shape == (4, 32)
    assert torch.allclose(features.norm(dim=1), torch.ones(4), atol=1e-5)
    assert (features >= 0).all()
