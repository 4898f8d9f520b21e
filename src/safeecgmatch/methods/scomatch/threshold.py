"""SCOMatch's adaptive threshold."""

from __future__ import annotations

import torch
from torch import Tensor


def adaptive_ood_threshold(tallies: Tensor, threshold: float, lowest: float) -> Tensor:
    """SCOMatch: t N_ood / N_known within [lowest, t]; t where no known class was predicted with confidence."""
    known = tallies[:-1].sum().to(torch.float64)
    ratio = torch.where(known > 0, tallies[-1] / known, torch.ones_like(known))
    return (threshold * ratio).clamp(lowest, threshold)
