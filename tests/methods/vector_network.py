"""The network of the time-series vectors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class ToyNetwork(torch.nn.Module):
    """The network of the vectors: flatten - linear - BN - tanh - unit norm - linear."""

    def __init__(self, state: dict[str, Any]) -> None:
        super().__init__()
        tensors = {name: torch.tensor(value) for name, value in state.items()}
        hidden, inputs = tensors["lin.weight"].shape
        self.lin = torch.nn.Linear(inputs, hidden)
        self.bn = torch.nn.BatchNorm1d(hidden)
        self.fc = torch.nn.Linear(hidden, len(tensors["fc.weight"]))
        self.load_state_dict(tensors)
        self.eval()

    def features(self, x: Tensor) -> Tensor:
        return torch.nn.functional.normalize(torch.tanh(self.bn(self.lin(x.flatten(1)))), dim=1, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))
