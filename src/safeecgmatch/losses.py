"""Loss terms as pure functions of logits, one equation each; equation numbers are those of the SafeECGMatch paper.

Shapes: class logits (n, K); one-vs-all logits (n, 2K), first K "outlier", last K "inlier"; labels (n,).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Eq. (8), L_cls: mean over the batch of -log softmax(z)_y."""
    return F.cross_entropy(logits, labels)


def pseudo_label_loss(logits: Tensor, pseudo: Tensor, accepted: Tensor, average_over: str) -> Tensor:
    """Eq. (17), L_fix: cross-entropy of the accepted rows against their pseudo-labels.

    `average_over` is "batch" (masked rows count 0) or "selected" (mean over the accepted rows; 0 where there is none).
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


# One-vs-all heads (IOMatch, OpenMatch, CaliMatch, SafeECGMatch)

ONE_VS_ALL_EPS = 1e-8


def one_vs_all_probabilities(logits: Tensor) -> tuple[Tensor, Tensor]:
    """(outlier, inlier) probabilities (n, K) each: for every class the softmax of its pair (o_k, o_{K+k})."""
    outlier, inlier = torch.stack(logits.chunk(2, dim=1)).softmax(dim=0)
    return outlier, inlier


def one_vs_all_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Eq. (9), L_ood: mean_j -ln(v_{j,y} + e) + mean_j max_{k != y} -ln(u_{jk} + e), the hardest negative class alone.

    u is the outlier and v the inlier probability, e = 1e-8. Taking u itself for 1 - v keeps the digits near v = 1.
    """
    outlier, inlier = one_vs_all_probabilities(logits)
    positive = -(inlier.gather(1, labels[:, None]) + ONE_VS_ALL_EPS).log()
    others = 1.0 - F.one_hot(labels, outlier.shape[1]).to(outlier.dtype)
    negative = (-(outlier + ONE_VS_ALL_EPS).log() * others).max(dim=1).values
    return positive.mean() + negative.mean()


# Time-series baselines: ECGMatch, TS-TFC, CompleMatch


def supcon_unit(projections: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Supervised contrastive loss (Khosla et al. 2020) on unit rows u, with P(i) the other rows of i's class:

    l_i = -(1/|P(i)|) sum_{p in P(i)} [u_i.u_p / T - log sum_{a != i} exp(u_i.u_a / T)], mean over rows with |P(i)| > 0.
    """
    logits, others, positives = _contrast(F.normalize(projections, dim=1, eps=1e-12), labels, temperature)
    log_sum = (logits.exp() * others).sum(dim=1, keepdim=True).clamp(min=1e-12).log()
    return _mean_over_anchors(logits - log_sum, positives)


def supcon_raw(projections: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """The same loss on raw projections, as TS-TFC and CompleMatch define it (temperature 50)."""
    logits, others, positives = _contrast(projections, labels, temperature)
    log_sum = ((logits.exp() * others).sum(dim=1, keepdim=True) + 1e-12).log()
    return _mean_over_anchors(logits - log_sum, positives)


def _contrast(rows: Tensor, labels: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    logits = rows @ rows.T / temperature
    logits = logits - logits.max(dim=1, keepdim=True).values.detach()
    others = ~torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    return logits, others, (labels[:, None] == labels[None, :]) & others


def _mean_over_anchors(log_probs: Tensor, positives: Tensor) -> Tensor:
    """The mean over rows with a positive; a constant 0 where no row has one, without asking the device."""
    count = positives.sum(dim=1)
    per_row = -(log_probs * positives).sum(dim=1) / count.clamp(min=1)
    return per_row.sum() / (count > 0).sum().clamp(min=1)


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


def shared_cross_entropy(logits: Tensor, labels: Tensor, pseudo: Tensor, accepted: Tensor) -> Tensor:
    """Co-training: one mean over the labelled rows (first) and the accepted unlabelled rows (with hard labels)."""
    rows = F.cross_entropy(logits, torch.cat([labels, pseudo]), reduction="none")
    counts = torch.cat([torch.ones_like(labels, dtype=torch.bool), accepted])
    return (rows * counts).sum() / counts.sum()


def masked_soft_cross_entropy(logits: Tensor, targets: Tensor, mask: Tensor, by_confidence: bool = False) -> Tensor:
    """sum_i m_i H(q_i, z_i) / max(sum_i m_i, 1e-12); with `by_confidence`, m_i is multiplied by max_k q_ik."""
    weights = mask.to(logits.dtype)
    if by_confidence:
        weights = weights * targets.amax(dim=1)
    return (weights * soft_cross_entropy(logits, targets)).sum() / weights.sum().clamp(min=1e-12)


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


# Consistency, calibration and selection (OpenMatch, CaliMatch, SafeECGMatch)

CLASS_EPS = 1e-5


def soft_consistency_loss(logits_1: Tensor, logits_2: Tensor) -> Tensor:
    """Eq. (10), L_socr: mean_i sum_k ||r1_ik - r2_ik||^2 over (outlier, inlier) pairs; gradient on both sides."""
    first, second = (torch.cat(one_vs_all_probabilities(logits), dim=1) for logits in (logits_1, logits_2))
    return (first - second).square().sum(dim=1).mean()


def one_vs_all_entropy(logits: Tensor) -> Tensor:
    """OpenMatch's L_em: mean_i mean_k of the entropy -sum_c r_c ln(r_c + 1e-8) of the pair of class k."""
    outlier, inlier = one_vs_all_probabilities(logits)
    entropy = -(outlier * (outlier + ONE_VS_ALL_EPS).log() + inlier * (inlier + ONE_VS_ALL_EPS).log())
    return entropy.mean()


def class_calibration_loss(logits: Tensor, labels: Tensor, alpha: Tensor, temperature: Tensor) -> Tensor:
    """Eq. (13), L_cls-cal: cross-entropy of softmax(z / T) with target alpha at y, (1 - alpha)/(K - 1) elsewhere."""
    classes = logits.shape[1]
    true = F.one_hot(labels, classes).to(logits.dtype)
    alpha = alpha[:, None]
    targets = alpha * true + (1.0 - alpha) / (classes - 1) * (1.0 - true)
    return -(targets * ((logits / temperature).softmax(dim=1) + CLASS_EPS).log()).sum(dim=1).mean()


def one_vs_all_calibration_loss(logits: Tensor, labels: Tensor, beta: Tensor, temperature: Tensor) -> Tensor:
    """Eq. (14), L_ood-cal, with s = beta at y and 1 - beta elsewhere and r = one-vs-all probabilities of o / T:

    mean_i sum_k -s_ik ln(r_in,k + e) + mean_i max_k -(1 - s_ik) ln(r_out,k + e); the max runs over all k, y included.
    """
    outlier, inlier = one_vs_all_probabilities(logits / temperature)
    true = F.one_hot(labels, outlier.shape[1]).to(logits.dtype)
    beta = beta[:, None]
    targets = beta * true + (1.0 - beta) * (1.0 - true)
    positive = -(targets * (inlier + ONE_VS_ALL_EPS).log()).sum(dim=1)
    negative = (-(1.0 - targets) * (outlier + ONE_VS_ALL_EPS).log()).max(dim=1).values
    return positive.mean() + negative.mean()


def inlier_scores(
    class_logits: Tensor, ova_logits: Tensor, t_class: Tensor, t_ova: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Eq. (15): S = sum_k p_k r_in,k, its complement sum_k p_k r_out,k, and p; all tempered (Eqs. 11-12)."""
    p = (class_logits / t_class).softmax(dim=1)
    outlier, inlier = one_vs_all_probabilities(ova_logits / t_ova)
    return (p * inlier).sum(dim=1), (p * outlier).sum(dim=1), p


def select_inliers(s_in: Tensor, s_out: Tensor, confidence: Tensor, t1: float, t2: float, strict: bool) -> Tensor:
    """Eq. (16): S > T1 and C > T2 where `strict`; otherwise CaliMatch's max(S, 1 - S) >= T1, S > 1 - S, C >= T2."""
    if strict:
        return (s_in > t1) & (confidence > t2)
    return (torch.maximum(s_in, s_out) >= t1) & (s_in > s_out) & (confidence >= t2)


# Open-set baselines (IOMatch, SCOMatch, SafeStudent)

ALIGN_EPS = 1e-6
ENERGY_EPS = 1e-5


def masked_mean(rows: Tensor, mask: Tensor, average_over: str) -> Tensor:
    """Mean of the masked rows over the "batch" or over the "selected" rows themselves; 0 where there is none."""
    count = max(len(rows), 1) if average_over == "batch" else mask.sum().clamp(min=1)
    return (rows * mask).sum() / count


class Alignment(NamedTuple):
    """Ring of batch means, zeros where never written, float32 whatever the logits; `pointer` is the next slot."""

    means: Tensor
    pointer: int = 0


def align(p: Tensor, state: Alignment) -> tuple[Tensor, Alignment]:
    """IOMatch: p~_k ~ p_k (1/K + e) / (m_k + e), e = 1e-6, m the mean of all slots; and the state after this batch.

    The batch's own mean is written first, and never-written slots count in m.
    """
    means = state.means.clone()
    means[state.pointer] = p.mean(dim=0)
    scaled = p * (1.0 / p.shape[1] + ALIGN_EPS) / (means.mean(dim=0) + ALIGN_EPS)
    return scaled / scaled.sum(dim=1, keepdim=True), Alignment(means, (state.pointer + 1) % len(means))


def adaptive_ood_threshold(tallies: Tensor, threshold: float, lowest: float) -> Tensor:
    """SCOMatch: t N_ood / N_known within [lowest, t]; t where no known class was predicted with confidence."""
    known = tallies[:-1].sum().to(torch.float64)
    ratio = torch.where(known > 0, tallies[-1] / known, torch.ones_like(known))
    return (threshold * ratio).clamp(lowest, threshold)


def energy_discrepancy(logits: Tensor, temperature: float) -> Tensor:
    """SafeStudent: ED = T ln sum_k e^(z_k/T) - T ln(sum_k e^(z_k/T) - max_k e^(z_k/T) + 1e-5), one value per row.

    At T = 1 this is -ln(1 - max softmax) but for the 1e-5, so never below ln(K / (K - 1)).
    """
    energies = (logits / temperature).exp()
    total, largest = energies.sum(dim=1), energies.amax(dim=1)
    return temperature * (total.log() - (total - largest + ENERGY_EPS).log())
