"""Calibration losses and the selection of inliers (CaliMatch, SafeECGMatch), in the order of the paper's equations.

Shapes: class logits (n, K); one-vs-all logits (n, 2K), first K "outlier", last K "inlier"; labels (n,).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from safeecgmatch.methods.parts.one_vs_all import ONE_VS_ALL_EPS, one_vs_all_probabilities

CLASS_EPS = 1e-5


def class_calibration_loss(logits: Tensor, labels: Tensor, alpha: Tensor, temperature: Tensor) -> Tensor:
    """Eq. (13), L_cls-cal: cross-entropy of softmax(z / T) with target alpha at y, (1 - alpha)/(K - 1) elsewhere.

    The mean over the batch, where the paper sums; 1e-5 is added inside the logarithm.
    """
    classes = logits.shape[1]
    true = F.one_hot(labels, classes).to(logits.dtype)
    alpha = alpha[:, None]
    targets = alpha * true + (1.0 - alpha) / (classes - 1) * (1.0 - true)
    return -(targets * ((logits / temperature).softmax(dim=1) + CLASS_EPS).log()).sum(dim=1).mean()


def one_vs_all_calibration_loss(logits: Tensor, labels: Tensor, beta: Tensor, temperature: Tensor) -> Tensor:
    """Eq. (14), L_ood-cal, with s = beta at y and 1 - beta elsewhere and r = one-vs-all probabilities of o / T:

    mean_i sum_k -s_ik ln(r_in,k + e) + mean_i max_k -(1 - s_ik) ln(r_out,k + e); the max runs over all k, y included.
    The paper sums over the batch, and its min_k (of the logarithm, so the max of the loss) is inside the sum over k
    and counts K times; here it counts once per record, as in CaliMatch.
    """
    outlier, inlier = one_vs_all_probabilities(logits / temperature)
    true = F.one_hot(labels, outlier.shape[1]).to(logits.dtype)
    beta = beta[:, None]
    targets = beta * true + (1.0 - beta) * (1.0 - true)
    positive = -(targets * (inlier + ONE_VS_ALL_EPS).log()).sum(dim=1)
    negative = (-(1.0 - targets) * (outlier + ONE_VS_ALL_EPS).log()).max(dim=1).values
    return positive.mean() + negative.mean()


class Scores(NamedTuple):
    """What is known of unlabelled records, all tempered (Eqs. 11-12)."""

    s_in: Tensor  # (n,) S
    s_out: Tensor  # (n,) 1 - S
    p: Tensor  # (n, K)


def inlier_scores(class_logits: Tensor, ova_logits: Tensor, t_class: Tensor, t_ova: Tensor) -> Scores:
    """Eq. (15): S = sum_k p_k r_in,k, its complement sum_k p_k r_out,k, and p."""
    p = (class_logits / t_class).softmax(dim=1)
    outlier, inlier = one_vs_all_probabilities(ova_logits / t_ova)
    return Scores((p * inlier).sum(dim=1), (p * outlier).sum(dim=1), p)


def select_inliers(s_in: Tensor, s_out: Tensor, confidence: Tensor, t1: float, t2: float, strict: bool) -> Tensor:
    """Eq. (16): S > T1 and C > T2 where `strict`; otherwise CaliMatch's max(S, 1 - S) >= T1, S > 1 - S, C >= T2."""
    if strict:
        return (s_in > t1) & (confidence > t2)
    return (torch.maximum(s_in, s_out) >= t1) & (s_in > s_out) & (confidence >= t2)
