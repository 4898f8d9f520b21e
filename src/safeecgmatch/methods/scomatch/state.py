"""SCOMatch's memory of unlikely records, and its adaptive threshold."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor


@dataclass(frozen=True)
class State:
    """Oldest memory entry first: signals as they were fed, scores as they were then; tallies since the last update."""

    items: tuple[Tensor, ...]
    scores: Tensor  # (len(items),)
    tallies: Tensor  # (K+1,) confident predictions per class
    tau_ood: Tensor  # ()

    @classmethod
    def new(cls, num_classes: int, threshold: float, device: torch.device) -> State:
        """Empty, with the threshold of the known classes for the unseen one too."""
        return cls(
            items=(),
            scores=torch.empty(0, device=device),
            tallies=torch.zeros(num_classes + 1, dtype=torch.int64, device=device),
            tau_ood=torch.tensor(threshold, dtype=torch.float64, device=device),
        )

    def push(self, x: Tensor, known: Tensor, size: int) -> State:
        """Keep the one row of `x` whose largest known-class probability `known` (n,) is lowest; `size` entries."""
        lowest, row = known.min(dim=0, keepdim=True)
        items = (*self.items, x.detach().index_select(0, row)[0])[-size:]
        return replace(self, items=items, scores=torch.cat([self.scores, lowest])[-size:])

    def draw(self, count: int, generator: Generator) -> list[int]:
        """`count` distinct entries in random order; none while there are fewer."""
        if len(self.items) < count:
            return []
        return torch.randperm(len(self.items), generator=generator)[:count].tolist()

    def renewed(self, threshold: float, lowest: float) -> State:
        """The threshold that the tallies ask for, and tallies from 0 again."""
        tau_ood = adaptive_ood_threshold(self.tallies, threshold, lowest)
        return replace(self, tau_ood=tau_ood, tallies=torch.zeros_like(self.tallies))


def adaptive_ood_threshold(tallies: Tensor, threshold: float, lowest: float) -> Tensor:
    """t N_ood / N_known within [lowest, t]; t where no known class was predicted with confidence."""
    known = tallies[:-1].sum().to(torch.float64)
    ratio = torch.where(known > 0, tallies[-1] / known, torch.ones_like(known))
    return (threshold * ratio).clamp(lowest, threshold)
