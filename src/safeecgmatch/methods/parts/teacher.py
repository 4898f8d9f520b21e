"""A second copy of a network that is never trained by gradients: frozen, averaged over time, or a kept best one.

A `Teacher` is no submodule of the method that owns it, so it is in none of its parameters, optimisers or weight files;
its state travels in the checkpoint through `Method.memory`.
"""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor, nn

Buffers = Literal["frozen", "copy", "ema"]


class Teacher:
    """A deep copy of `student`, always in evaluation mode and without gradients."""

    def __init__(self, student: nn.Module) -> None:
        self.network = copy.deepcopy(student).requires_grad_(False).eval()

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """The network's output; it follows its input to the device, as nobody else moves an unregistered network."""
        return self.network.to(x.device)(x)

    @torch.no_grad()
    def ema_(self, student: nn.Module, decay: float, buffers: Buffers) -> None:
        """theta_T <- decay * theta_T + (1 - decay) * theta_S; batch-norm statistics as `buffers` says."""
        self._follow(student)
        for mine, theirs in zip(self.network.parameters(), student.parameters(), strict=True):
            mine.mul_(decay).add_(theirs, alpha=1.0 - decay)
        for statistic, current in zip(self.network.buffers(), student.buffers(), strict=True):
            if buffers == "ema" and statistic.is_floating_point():
                statistic.mul_(decay).add_(current, alpha=1.0 - decay)
            elif buffers != "frozen":
                statistic.copy_(current)

    def copy_from(self, student: nn.Module) -> None:
        """The student as it is now, batch-norm statistics included."""
        self._follow(student)
        self.network.load_state_dict(student.state_dict())

    def state(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.network.state_dict().items()}

    def load(self, state: dict[str, Tensor]) -> None:
        self.network.load_state_dict(state)

    def _follow(self, student: nn.Module) -> None:
        self.network.to(next(student.parameters()).device)
