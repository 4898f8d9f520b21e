"""The mathematics of IOMatch on plain logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from safeecgmatch.config import Positive, Share
from safeecgmatch.engine.contract import Losses
from safeecgmatch.engine.method import Hyper
from safeecgmatch.methods.iomatch.alignment import Alignment, align
from safeecgmatch.methods.parts.losses import cross_entropy, masked_mean, soft_cross_entropy
from safeecgmatch.methods.parts.one_vs_all import one_vs_all_loss, one_vs_all_probabilities


class IOMatchHyper(Hyper):
    threshold: Share  # on the aligned closed-set confidence
    open_threshold: Share  # on the open-set target
    outlier_threshold: Share  # a score below it is an inlier
    queue: Positive  # batch means kept for the alignment


class Heads(NamedTuple):
    closed: Tensor  # (n, K)
    ova: Tensor  # (n, 2K)
    open: Tensor  # (n, K+1)


Views = tuple[Heads, Heads, Heads]  # labelled, weak, strong


@dataclass(frozen=True, kw_only=True)
class Step(Losses):
    """With the targets p~ and q, their masks, and the state of the next iteration."""

    aligned: Tensor
    target: Tensor
    inlier_mask: Tensor
    confident_mask: Tensor
    open_mask: Tensor
    state: Alignment | None


def step(z: Views, y_l: Tensor, state: Alignment | None, weight: float, opened: bool, hyper: IOMatchHyper) -> Step:
    """`state` None: nothing is aligned; `weight` of both unlabelled losses; `opened`: the open-set loss counts."""
    labelled, weakly, strongly = z
    p = weakly.closed.detach().softmax(dim=1)
    aligned, state = (p, None) if state is None else align(p, state)
    outlier, inlier = one_vs_all_probabilities(weakly.ova.detach())
    score = (aligned * outlier).sum(dim=1)
    target = torch.cat([aligned * inlier, score[:, None]], dim=1)
    inlier_mask, confident_mask = score < hyper.outlier_threshold, aligned.amax(dim=1) >= hyper.threshold
    open_mask = target.amax(dim=1) >= hyper.open_threshold
    terms = {
        "closed": cross_entropy(labelled.closed, y_l),
        "ova": one_vs_all_loss(labelled.ova, y_l),
        "inlier": masked_mean(soft_cross_entropy(strongly.closed, aligned), inlier_mask & confident_mask, "batch"),
        "open": masked_mean(soft_cross_entropy(strongly.open, target), open_mask, "batch"),
    }
    unlabelled = terms["inlier"] + terms["open"] if opened else terms["inlier"]
    total = terms["closed"] + terms["ova"] + weight * unlabelled
    return Step(
        total,
        terms,
        accepted=inlier_mask & confident_mask,
        pseudo=aligned.argmax(dim=1),
        aligned=aligned,
        target=target,
        inlier_mask=inlier_mask,
        confident_mask=confident_mask,
        open_mask=open_mask,
        state=state,
    )
