"""The mathematics of CaliMatch on plain logits; it is also one branch of SafeECGMatch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from safeecgmatch.config import Moment, Scale, Share, Weight
from safeecgmatch.engine.contract import Losses
from safeecgmatch.engine.method import Hyper, Switches
from safeecgmatch.methods.parts.branch import Calibration, Temperatures, smoothed_targets
from safeecgmatch.methods.parts.calibration import (
    Scores,
    class_calibration_loss,
    inlier_scores,
    one_vs_all_calibration_loss,
    select_inliers,
)
from safeecgmatch.methods.parts.losses import cross_entropy, pseudo_label_loss
from safeecgmatch.methods.parts.one_vs_all import one_vs_all_loss, soft_consistency_loss
from safeecgmatch.methods.parts.smoothing import Axis


class CaliMatchHyper(Hyper):
    inlier_threshold: Share  # T1 of the paper, pi of the published code
    confidence_threshold: Share  # T2, tau
    initial_temperature: Scale
    lambda_ood: Weight
    lambda_socr: Weight
    lambda_cls_cal: Weight
    lambda_ood_cal: Weight
    lambda_fix: Weight


class CaliMatchSwitches(Switches):
    start: Moment
    temperatures: Temperatures
    smoothing_axis: Axis
    smoothing_clip: bool
    selection_strict: bool
    average_over: Literal["batch", "selected"]


@dataclass(frozen=True)
class Heads:
    """Class logits z and one-vs-all logits o of the labelled, first and second weak, and strong views."""

    z_l: Tensor
    o_l: Tensor
    z_1: Tensor
    o_1: Tensor
    o_2: Tensor
    z_s: Tensor


@torch.no_grad()
def own_scores(heads: Heads, now: Calibration) -> Scores:
    """What a branch thinks of its first weak view."""
    return inlier_scores(heads.z_1, heads.o_1, now.t_class, now.t_ova)


def step(
    y: Tensor,
    heads: Heads,
    now: Calibration,
    hyper: CaliMatchHyper,
    switches: CaliMatchSwitches,
    late: bool,
    calibrated: bool = True,
    judged: Scores | None = None,
) -> Losses:
    """One branch, Eq. (18). Before `late` the last three terms are exactly 0 and reach no parameter.

    Selection and pseudo-labels come from the branch's own scores of the first weak view, or from `judged`.
    """
    zero = heads.z_l.new_zeros(())
    cls_cal, ood_cal, fix = zero, zero, zero
    cls, ood = cross_entropy(heads.z_l, y), one_vs_all_loss(heads.o_l, y)
    socr = soft_consistency_loss(heads.o_1, heads.o_2)
    with torch.no_grad():
        s_in, s_out, p = own_scores(heads, now) if judged is None else judged
        confidence, pseudo = p.max(dim=1)
        thresholds = hyper.inlier_threshold, hyper.confidence_threshold
        accepted = select_inliers(s_in, s_out, confidence, *thresholds, switches.selection_strict) & late
    if late:
        fix = pseudo_label_loss(heads.z_s, pseudo, accepted, switches.average_over)
    if late and calibrated:
        alpha, beta = smoothed_targets(heads.z_l, heads.o_l, now, switches.smoothing_axis, switches.smoothing_clip)
        cls_cal = class_calibration_loss(heads.z_l, y, alpha, now.t_class)
        ood_cal = one_vs_all_calibration_loss(heads.o_l, y, beta, now.t_ova)
    total = cls + hyper.lambda_cls_cal * cls_cal + hyper.lambda_ood * ood + hyper.lambda_socr * socr
    total = total + hyper.lambda_ood_cal * ood_cal + hyper.lambda_fix * fix
    terms = {"cls": cls, "ood": ood, "socr": socr, "cls_cal": cls_cal, "ood_cal": ood_cal, "fix": fix}
    return Losses(total, terms, accepted, pseudo)
