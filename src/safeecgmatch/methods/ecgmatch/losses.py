"""ECGMatch's own losses: weighted binary cross-entropy and the relationship between classes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def weighted_binary_cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """ECGMatch: mean over rows and classes of w BCE(sigmoid(z), t); the targets may be soft."""
    return F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), weight=weights)


def relationship_cosine(scores: Tensor) -> Tensor:
    """ECGMatch's G: cosine between the class columns (n, K), 1e-6 added to the product of the norms, cut to [0, 1]."""
    norms = scores.norm(dim=0)
    return (scores.T @ scores / (norms[:, None] * norms[None, :] + 1e-6)).clamp(0.0, 1.0)


def relationship_pearson(scores: Tensor) -> Tensor:
    """The published benchmark's map: correlation between class columns, negatives cut to 0, constant columns 0."""
    centred = scores - scores.mean(dim=0)
    unit = centred / centred.norm(dim=0).clamp(min=1e-6)
    return (unit.T @ unit).clamp(0.0, 1.0)


def relationship_squared(scores: Tensor) -> Tensor:
    """ECGMatch's first alternative to the cosine: the squared correlation between class columns."""
    centred = scores - scores.mean(dim=0)
    norms = centred.norm(dim=0)
    return (centred.T @ centred / (norms[:, None] * norms[None, :] + 1e-6)).square().clamp(0.0, 1.0)


def relationship_euclidean(scores: Tensor) -> Tensor:
    """ECGMatch's second alternative: 1 / (1 + distance between class columns)."""
    return (1.0 / (1.0 + (scores[:, :, None] - scores[:, None, :]).norm(dim=0))).clamp(0.0, 1.0)


RELATIONSHIPS = {
    "cosine": relationship_cosine,
    "squared_pearson": relationship_squared,
    "euclidean": relationship_euclidean,
}


def relationship_loss(matrix: Tensor, target: Tensor) -> Tensor:
    """ECGMatch: Frobenius norm (not squared) of the difference; zero sub-gradient where they are equal."""
    return torch.linalg.vector_norm(matrix - target)
