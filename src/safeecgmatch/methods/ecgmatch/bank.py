"""ECGMatch's memory of the pool, and the neighbours of a record in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from safeecgmatch.engine.models import ResNet1D


@dataclass
class Bank:
    """What a network last said of every record of the pool (ECGMatch): unit features and class scores, by position."""

    features: Tensor  # (N, d)
    scores: Tensor  # (N, K)

    @classmethod
    @torch.no_grad()
    def filled(cls, network: ResNet1D, batches: Iterable[Tensor], activation: Callable[[Tensor], Tensor]) -> Bank:
        """All records through `network`, which is in evaluation mode."""
        features = torch.cat([network.features(x) for x in batches])
        return cls(features, activation(network.fc(features)))

    def write(self, positions: Tensor, features: Tensor, scores: Tensor) -> None:
        self.features[positions] = features.to(self.features.dtype)
        self.scores[positions] = scores.to(self.scores.dtype)

    def state(self) -> dict[str, Tensor]:
        return {"features": self.features, "scores": self.scores}

    @classmethod
    def restored(cls, state: dict[str, Tensor], device: torch.device) -> Bank:
        return cls(**{name: value.to(device) for name, value in state.items()})


def similar_rows(queries: Tensor, features: Tensor, k: int, own: Tensor | None = None) -> Tensor:
    """The k rows of unit `features` with the largest cosine to each query, its `own` row left out where given."""
    cosines = F.normalize(queries, dim=1, eps=1e-12) @ features.T
    if own is not None:
        cosines.scatter_(1, own[:, None], -1.0)
    return cosines.topk(k, dim=1).indices
