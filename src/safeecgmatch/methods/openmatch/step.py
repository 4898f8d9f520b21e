"""The mathematics of OpenMatch on plain logits."""

from __future__ import annotations

from torch import Tensor

from safeecgmatch.config import Weight
from safeecgmatch.engine.contract import Losses
from safeecgmatch.engine.method import Hyper
from safeecgmatch.methods.parts.losses import cross_entropy
from safeecgmatch.methods.parts.one_vs_all import (
    one_vs_all_entropy,
    one_vs_all_loss,
    one_vs_all_probabilities,
    soft_consistency_loss,
)


class OpenMatchHyper(Hyper):
    lambda_ova: Weight
    lambda_em: Weight
    lambda_socr: Weight
    lambda_fix: Weight


def step(z_l: Tensor, o_l: Tensor, y: Tensor, o_1: Tensor, o_2: Tensor, hyper: OpenMatchHyper) -> Losses:
    """Forward A: logits of both labelled views (their labels twice in `y`), one-vs-all logits of both unlabelled."""
    supervised, ova = cross_entropy(z_l, y), one_vs_all_loss(o_l, y)
    entropy = (one_vs_all_entropy(o_1) + one_vs_all_entropy(o_2)) / 2
    socr = soft_consistency_loss(o_1, o_2)
    total = supervised + hyper.lambda_ova * ova + hyper.lambda_em * entropy + hyper.lambda_socr * socr
    return Losses(total, {"supervised": supervised, "ova": ova, "entropy": entropy, "socr": socr})


def unseen_score(z: Tensor, o: Tensor) -> Tensor:
    """The outlier probability of the predicted class."""
    outlier, _ = one_vs_all_probabilities(o)
    return outlier.gather(1, z.argmax(dim=1, keepdim=True)).squeeze(1)


def looks_inlying(z: Tensor, o: Tensor) -> Tensor:
    """Whether the pair of the predicted class leans to "inlier"; a tie does not."""
    predicted = z.argmax(dim=1, keepdim=True)
    outlier, inlier = one_vs_all_probabilities(o)
    return (inlier.gather(1, predicted) > outlier.gather(1, predicted)).squeeze(1)
