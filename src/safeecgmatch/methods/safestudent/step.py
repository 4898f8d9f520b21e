"""The mathematics of SafeStudent's phase 2 on plain logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from safeecgmatch.config import Decay, Moment, Percentile, Scale, Weight
from safeecgmatch.engine.contract import Losses
from safeecgmatch.engine.method import Hyper, Switches
from safeecgmatch.methods.parts.losses import cross_entropy, masked_mean, pseudo_label_loss
from safeecgmatch.methods.safestudent.energy import energy_discrepancy

UNSEEN_MARGIN = 0.1


class StudentHyper(Hyper):
    seen_percentile: Percentile
    unseen_percentile: Percentile
    teacher_decay: Decay
    teacher_every: Moment


class StudentSwitches(Switches):
    threshold_mode: Literal["percentile", "absolute"]
    temperature: Scale
    lambda_seen: Weight
    lambda_uniform: Weight
    average_over: Literal["batch", "selected"]
    weight_unseen: bool
    teacher_view: Literal["raw", "weak"]
    teacher_update: Literal["rounds", "ema"]
    restart_optimizer: bool
    selection_includes_pretrain: bool


@dataclass(frozen=True, kw_only=True)
class Step(Losses):
    """With the energy discrepancies and the records that they call seen and unseen."""

    ed: Tensor
    seen: Tensor
    unseen: Tensor


def step(
    z_l: Tensor, y_l: Tensor, t: Tensor, s: Tensor, ood_ratio: float, hyper: StudentHyper, switches: StudentSwitches
) -> Step:
    """One iteration of phase 2: labelled logits, then the teacher's `t` and the student's `s` of the unlabelled."""
    ed = energy_discrepancy(t.detach(), switches.temperature)
    if switches.threshold_mode == "absolute":
        seen, unseen = ed > ood_ratio, ed < max(ood_ratio - UNSEEN_MARGIN, 0.0)
    else:
        seen, unseen = ed > ed.quantile(hyper.seen_percentile / 100), ed < ed.quantile(hyper.unseen_percentile / 100)
    pseudo, log_s = t.argmax(dim=1), s.log_softmax(dim=1)
    divergence = F.kl_div(log_s, t.detach().log_softmax(dim=1), reduction="none", log_target=True).sum(dim=1)
    uniformity = -log_s.mean(dim=1) - math.log(s.shape[1])
    if switches.weight_unseen:
        largest = ed.masked_fill(~unseen, -math.inf).amax()
        uniformity = uniformity * ((largest - ed) / (largest + 1e-10)).exp().masked_fill(~unseen, 0.0)
    over = switches.average_over
    terms = {
        "supervised": cross_entropy(z_l, y_l),
        "hard": pseudo_label_loss(s, pseudo, seen, "selected"),
        "soft": masked_mean(divergence, seen, over),
        "uniform": masked_mean(uniformity, unseen, over),
    }
    seen_loss = switches.lambda_seen * (terms["hard"] + terms["soft"])
    total = terms["supervised"] + seen_loss + switches.lambda_uniform * terms["uniform"]
    return Step(total, terms, accepted=seen, pseudo=pseudo, ed=ed, seen=seen, unseen=unseen)
