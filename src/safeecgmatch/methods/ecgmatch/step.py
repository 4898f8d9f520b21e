"""The mathematics of ECGMatch on plain logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from safeecgmatch.config import Moment
from safeecgmatch.engine.contract import Losses
from safeecgmatch.methods.ecgmatch.bank import similar_rows
from safeecgmatch.methods.ecgmatch.losses import RELATIONSHIPS, relationship_loss, weighted_binary_cross_entropy
from safeecgmatch.methods.ecgmatch.teaching import TeachingSwitches


class ECGMatchSwitches(TeachingSwitches):
    pretraining: Moment
    views: Literal["benchmark", "ecg_augment"]
    relationship: Literal["cosine", "squared_pearson", "euclidean"]


@dataclass(frozen=True)
class Targets:
    nearest: Tensor  # (n, neighbours) rows of the bank
    scores: Tensor  # (n, K) in [0, 1], not normalised
    weights: Tensor  # (n, K)


def neighbour_targets(queries: Tensor, features: Tensor, scores: Tensor, neighbours: int) -> Targets:
    """pbar, the mean score of the nearest rows (a record's own among them), and its weight |2 pbar - 1|."""
    nearest = similar_rows(queries, features, neighbours)
    mean = scores[nearest].mean(dim=1)
    return Targets(nearest, mean, (2 * mean - 1).abs())


def step(
    z_l: Tensor, y_l: Tensor, z_w: Tensor, z_s: Tensor, targets: Targets, wanted: Tensor, switches: ECGMatchSwitches
) -> Losses:
    """`y_l` (n, K) zeros and ones, `wanted` (K, K) the relationship target. No threshold: every record is used."""
    matrix = RELATIONSHIPS[switches.relationship](torch.sigmoid(torch.cat([z_w, z_s])))
    terms = {
        "supervised": weighted_binary_cross_entropy(z_l, y_l),
        "neighbour": weighted_binary_cross_entropy(z_s, targets.scores, targets.weights.to(z_s.dtype)),
        "relationship": relationship_loss(matrix, wanted.to(matrix.dtype)),
    }
    return Losses(
        terms["supervised"] + switches.lambda_u * terms["neighbour"] + switches.lambda_rel * terms["relationship"],
        terms,
        accepted=torch.ones(len(z_s), dtype=torch.bool, device=z_s.device),
        pseudo=targets.scores.argmax(dim=1),
    )
