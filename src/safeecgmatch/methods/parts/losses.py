"""Loss terms that most methods share, as pure functions of logits; equation numbers are those of the paper.

Shapes: logits (n, K), labels (n,).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Eq. (8), L_cls: mean over the batch of -log softmax(z)_y, where the paper sums."""
    return F.cross_entropy(logits, labels)


def pseudo_label_loss(logits: Tensor, pseudo: Tensor, accepted: Tensor, average_over: str) -> Tensor:
    """Eq. (17), L_fix: cross-entropy of the accepted rows against their pseudo-labels.

    The paper sums over the accepted rows and lacks the minus sign. Here `average_over` is "batch" (masked rows count 0)
    or "selected" (mean over the accepted rows; 0 where there is none).
    """
    rows = F.cross_entropy(logits, pseudo, reduction="none") * accepted
    count = len(rows) if average_over == "batch" else accepted.sum().clamp(min=1)
    return rows.sum() / count


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """H(t, z) = -sum_k t_k log softmax(z)_k, one value per row."""
    return -(targets * F.log_softmax(logits, dim=1)).sum(dim=1)


def exponential_ramp(n: int, length: int) -> float:
    """exp(-5 (1 - min(n / length, 1))^2); 1 where there is no ramp."""
    if length == 0:
        return 1.0
    return math.exp(-5.0 * (1.0 - min(n / length, 1.0)) ** 2)


def accept_confident(logits: Tensor, threshold: float, strict: bool) -> tuple[Tensor, Tensor]:
    """(pseudo-labels, accepted): arg max of softmax(z), and whether its probability passes the threshold."""
    confidence, pseudo = torch.softmax(logits.detach(), dim=1).max(dim=1)
    return pseudo, confidence > threshold if strict else confidence >= threshold


def masked_mean(rows: Tensor, mask: Tensor, average_over: str) -> Tensor:
    """Mean of the masked rows over the "batch" or over the "selected" rows themselves; 0 where there is none."""
    count = max(len(rows), 1) if average_over == "batch" else mask.sum().clamp(min=1)
    return (rows * mask).sum() / count
