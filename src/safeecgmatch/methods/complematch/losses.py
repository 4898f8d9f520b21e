"""CompleMatch's own losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def simclr(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """CompleMatch's one-directional InfoNCE: row i of cos(first_i, second_j) / T against column i, mean over rows."""
    cosine = F.normalize(first, dim=1, eps=1e-12) @ F.normalize(second, dim=1, eps=1e-12).T
    return F.cross_entropy(cosine / temperature, torch.arange(len(first), device=first.device))


def complementarity(logits: Tensor, other: Tensor, threshold: float = 0.8, slope: float = 15.0) -> Tensor:
    """CompleMatch's constraint: the two views should be confident on different records. `other` gets no gradient.

    s = sigmoid(slope (max softmax - threshold)) per view; both = mean s s', none = mean (1-s)(1-s'),
    one = mean s(1-s') + s'(1-s);  L = -log(exp(-both) + exp(-none)) - one.
    """
    ours = torch.sigmoid(slope * (torch.softmax(logits, dim=1).amax(dim=1) - threshold))
    theirs = torch.sigmoid(slope * (torch.softmax(other.detach(), dim=1).amax(dim=1) - threshold))
    both, none = (ours * theirs).mean(), ((1 - ours) * (1 - theirs)).mean()
    one = (ours * (1 - theirs) + theirs * (1 - ours)).mean()
    return -torch.logaddexp(-both, -none) - one
