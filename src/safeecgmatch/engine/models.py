"""The shared backbone: a one-dimensional ResNet-18, computed as convolutions of height 1 in channels-last memory.

That layout is faster than Conv1d on CPU and GPU alike. Weights keep Conv1d shapes (out, in, kernel) in every file.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STAGES = 4
NORM_EPS = 1e-12
LINEAR_STD = 0.02


class Conv(nn.Module):
    """Conv1d without bias whose (out, in, kernel) weight lies in memory as channels-last convolution wants it."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        reference = nn.Conv1d(inputs, outputs, kernel, bias=False)  # PyTorch's default initialisation
        self.weight = nn.Parameter(reference.weight.detach().permute(0, 2, 1).contiguous().permute(0, 2, 1))
        self.stride, self.padding = (1, stride), (0, kernel // 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight.unsqueeze(2), stride=self.stride, padding=self.padding)


class BasicBlock(nn.Module):
    """conv 3 (stride s) - BN - ReLU - conv 3 - BN, plus shortcut, ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = Conv(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = Conv(outputs, outputs, 3), nn.BatchNorm2d(outputs)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(Conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x), inplace=True)


class ResNet1D(nn.Module):
    """Encoder and linear classifier on unit-norm features: `features(x)` (n, 8 * width), `fc` (-> num_classes)."""

    def __init__(self, channels: int, num_classes: int, width: int) -> None:
        super().__init__()
        self.stem, self.stem_bn = Conv(channels, width, 7, 2), nn.BatchNorm2d(width)
        blocks: list[nn.Module] = []
        inputs = width
        for stage in range(STAGES):
            outputs = width * 2**stage
            blocks += [BasicBlock(inputs, outputs, 1 if stage == 0 else 2), BasicBlock(outputs, outputs, 1)]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.dim = inputs
        self.fc = nn.Linear(self.dim, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Global average of the last feature map, divided by max(its L2 norm, 1e-12)."""
        y = x.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        y = F.relu(self.stem_bn(self.stem(y)), inplace=True)
        y = F.max_pool2d(y, (1, 3), stride=(1, 2), padding=(0, 1))
        return F.normalize(self.blocks(y).mean(dim=(2, 3)), dim=1, eps=NORM_EPS)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


def projection_head(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Linear - BN - ReLU - Linear, as in TS-TFC and CompleMatch."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True), nn.Linear(hidden, outputs)
    )


def initialise_linear_(*modules: nn.Module) -> None:
    """Every Linear of the modules to N(0, 0.02^2) weights and zero bias: IOMatch and SCOMatch, before any training."""
    for module in modules:
        for layer in module.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=LINEAR_STD)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)


def parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
