"""Losses of one-vs-all heads (IOMatch, OpenMatch, CaliMatch, SafeECGMatch), in the order of the paper's equations.

Shapes: one-vs-all logits (n, 2K), first K "outlier", last K "inlier"; labels (n,).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ONE_VS_ALL_EPS = 1e-8


def one_vs_all_probabilities(logits: Tensor) -> tuple[Tensor, Tensor]:
    """(outlier, inlier) probabilities (n, K) each: for every class the softmax of its pair (o_k, o_{K+k})."""
    outlier, inlier = torch.stack(logits.chunk(2, dim=1)).softmax(dim=0)
    return outlier, inlier


def one_vs_all_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Eq. (9), L_ood: mean_j -ln(v_{j,y} + e) + mean_j max_{k != y} -ln(u_{jk} + e), the hardest negative class alone.

    u is the outlier and v the inlier probability, e = 1e-8. Taking u itself for 1 - v keeps the digits near v = 1. The
    paper sums over the batch, and its min over l != k of log(1 - q_l), k unbound, is this max once per record, k = y.
    """
    outlier, inlier = one_vs_all_probabilities(logits)
    positive = -(inlier.gather(1, labels[:, None]) + ONE_VS_ALL_EPS).log()
    others = 1.0 - F.one_hot(labels, outlier.shape[1]).to(outlier.dtype)
    negative = (-(outlier + ONE_VS_ALL_EPS).log() * others).max(dim=1).values
    return positive.mean() + negative.mean()


def soft_consistency_loss(logits_1: Tensor, logits_2: Tensor) -> Tensor:
    """Eq. (10), L_socr: mean_i sum_k ||r1_ik - r2_ik||^2 over (outlier, inlier) pairs; gradient on both sides.

    The paper sums over the batch.
    """
    first, second = (torch.cat(one_vs_all_probabilities(logits), dim=1) for logits in (logits_1, logits_2))
    return (first - second).square().sum(dim=1).mean()


def one_vs_all_entropy(logits: Tensor) -> Tensor:
    """OpenMatch's L_em: mean_i mean_k of the entropy -sum_c r_c ln(r_c + 1e-8) of the pair of class k."""
    outlier, inlier = one_vs_all_probabilities(logits)
    entropy = -(outlier * (outlier + ONE_VS_ALL_EPS).log() + inlier * (inlier + ONE_VS_ALL_EPS).log())
    return entropy.mean()
