"""Label propagation in rounds over a directed graph of a whole pool (TS-TFC of the published code).

Made in chunks, so that no N x N matrix is ever in memory. Labels are -1 where a node has none.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from safeecgmatch.methods.parts.losses import soft_cross_entropy
from safeecgmatch.methods.parts.propagation import _one_hot

CHUNK = 512  # rows of the similarity matrix in memory at a time: 31 MB for 15,000 nodes


@dataclass(frozen=True)
class Graph:
    """Each node's neighbours, nearest first, and their weights (rows sum to 1)."""

    neighbours: Tensor  # (n, k) int64
    weights: Tensor  # (n, k)


def nearest_neighbours(features: Tensor, k: int, chunk: int = CHUNK) -> Graph:
    """The k most similar other nodes by cosine, weighted by the softmax of the cosines; directed."""
    unit = F.normalize(features, dim=1, eps=1e-12)
    k = max(1, min(k, len(unit) - 1))
    cosines, neighbours = [], []
    for rows in torch.arange(len(unit), device=unit.device).split(chunk):
        similarity = unit[rows] @ unit.T
        similarity[torch.arange(len(rows), device=unit.device), rows] = -1e9
        nearest = similarity.topk(k, dim=1)
        cosines.append(nearest.values)
        neighbours.append(nearest.indices)
    return Graph(torch.cat(neighbours), torch.cat(cosines).softmax(dim=1))


def propagate_rounds(graph: Graph, labels: Tensor, num_classes: int, alpha: float, rounds: int) -> Tensor:
    """s_i <- alpha sum_j c_ij s_j + (1 - alpha) Y_i, seeds put back, rows divided by their sum; `rounds` times.

    Nodes without a label start at the class frequencies of the seeds (uniform where there are none).
    """
    is_seed = (labels >= 0)[:, None]
    seeds = _one_hot(labels, num_classes, graph.weights.dtype)
    counts = seeds.sum(dim=0)
    prior = torch.where(counts.sum() > 0, counts / counts.sum().clamp(min=1), torch.full_like(counts, 1 / num_classes))
    scores = torch.where(is_seed, seeds, prior)
    for _ in range(rounds):
        moved = F.embedding_bag(graph.neighbours, scores, per_sample_weights=graph.weights, mode="sum")
        scores = torch.where(is_seed, seeds, alpha * moved + (1 - alpha) * seeds)
        scores = scores / scores.sum(dim=1, keepdim=True).clamp(min=1e-12)
    return scores


def masked_soft_cross_entropy(logits: Tensor, targets: Tensor, mask: Tensor, by_confidence: bool = False) -> Tensor:
    """sum_i m_i H(q_i, z_i) / max(sum_i m_i, 1e-12); with `by_confidence`, m_i is multiplied by max_k q_ik."""
    weights = mask.to(logits.dtype)
    if by_confidence:
        weights = weights * targets.amax(dim=1)
    return (weights * soft_cross_entropy(logits, targets)).sum() / weights.sum().clamp(min=1e-12)
