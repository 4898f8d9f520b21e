"""CaliMatch (Bae et al., ICCV 2025): pseudo-labels from a calibrated classifier and a calibrated one-vs-all detector.

Per iteration one forward of [labelled weak | unlabelled weak 1 | weak 2 | strong] gives class logits z and one-vs-all
logits o, and (equation numbers of the SafeECGMatch paper, whose branches are this method)

    L = L_cls + lambda_ood L_ood + lambda_socr L_socr                                              Eqs. (8)-(10)
      + lambda_cls-cal L_cls-cal + lambda_ood-cal L_ood-cal + lambda_fix L_fix   from `start` on   Eqs. (13), (14), (17)

L_cls-cal and L_ood-cal pull the tempered probabilities towards the accuracy that validation records of the same
confidence have (`calibration.smoothing`). L_fix takes the records with S >= T1 and C >= T2, Eqs. (15)-(16).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from safeecgmatch.engine.contract import Batch, Evaluation, Losses, Outputs, Prediction
from safeecgmatch.engine.models import ResNet1D
from safeecgmatch.engine.views import strong, weak
from safeecgmatch.methods.base import Context, Hyper, Method, Switches
from safeecgmatch.methods.parts.branch import Branch, Calibration, Temperatures, smoothed_targets
from safeecgmatch.methods.parts.calibration import (
    class_calibration_loss,
    inlier_scores,
    one_vs_all_calibration_loss,
    select_inliers,
)
from safeecgmatch.methods.parts.losses import cross_entropy, pseudo_label_loss
from safeecgmatch.methods.parts.one_vs_all import one_vs_all_loss, soft_consistency_loss
from safeecgmatch.methods.parts.smoothing import Axis


class CaliMatchHyper(Hyper):
    inlier_threshold: float  # T1 of the paper, pi of the published code
    confidence_threshold: float  # T2, tau
    initial_temperature: float
    lambda_ood: float
    lambda_socr: float
    lambda_cls_cal: float
    lambda_ood_cal: float
    lambda_fix: float


class CaliMatchSwitches(Switches):
    start: int
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


@dataclass(frozen=True)
class Step:
    total: Tensor
    terms: dict[str, Tensor]
    accepted: Tensor
    pseudo: Tensor


def step(
    y: Tensor,
    heads: Heads,
    now: Calibration,
    hyper: CaliMatchHyper,
    switches: CaliMatchSwitches,
    late: bool,
    calibrated: bool = True,
) -> Step:
    """One branch, Eq. (18). Before `late` the last three terms are exactly 0 and reach no parameter."""
    zero = heads.z_l.new_zeros(())
    cls_cal, ood_cal, fix = zero, zero, zero
    cls, ood = cross_entropy(heads.z_l, y), one_vs_all_loss(heads.o_l, y)
    socr = soft_consistency_loss(heads.o_1, heads.o_2)
    with torch.no_grad():
        s_in, s_out, p = inlier_scores(heads.z_1, heads.o_1, now.t_class, now.t_ova)
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
    return Step(total, terms, accepted, pseudo)


def new_branch(
    network: ResNet1D, ova: nn.Linear, hyper: CaliMatchHyper, switches: CaliMatchSwitches, calibrated: bool = True
) -> Branch:
    initial, axis = hyper.initial_temperature, switches.smoothing_axis
    return Branch(network, ova, initial, switches.temperatures, axis, calibrated)


def four_views(batch: Batch, generator: Generator, sampling_rate: int) -> list[Tensor]:
    """Labelled weak, unlabelled weak 1, weak 2 and strong, drawn in this order."""
    views = [weak(batch.x_l, generator), weak(batch.x_u, generator), weak(batch.x_u, generator)]
    return [*views, strong(batch.x_u, generator, sampling_rate)]


def heads_of(branch: Branch, views: list[Tensor]) -> Heads:
    """One forward of the four views, so that they share their batch statistics."""
    z, o = branch(torch.cat(views))
    sizes = [len(view) for view in views]
    (z_l, z_1, _, z_s), (o_l, o_1, o_2, _) = z.split(sizes), o.split(sizes)
    return Heads(z_l, o_l, z_1, o_1, o_2, z_s)


class CaliMatch(Method[CaliMatchHyper, CaliMatchSwitches]):
    Hyper = CaliMatchHyper
    Switches = CaliMatchSwitches

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        network = ResNet1D(self.setting.leads, self.setting.num_classes, self.setting.width)
        ova = nn.Linear(network.dim, 2 * self.setting.num_classes, bias=False)
        self.branch = new_branch(network, ova, self.hyper, self.switches)
        self.start = self.setting.scaled(self.switches.start)

    def before_step(self, n: int) -> None:
        if n == self.start:
            self.after_outputs(self.validate_now(n))

    def losses(self, batch: Batch, n: int) -> Iterator[Losses]:
        heads = heads_of(self.branch, four_views(batch, self.rng("views"), self.setting.sampling_rate))
        result = step(batch.y_l, heads, self.branch.calibration(), self.hyper, self.switches, n >= self.start)
        yield Losses(result.total, result.terms, result.accepted, result.pseudo)

    def after_step(self, n: int) -> None:
        self.branch.clamp_temperatures()

    def after_outputs(self, evaluation: Evaluation) -> None:
        outputs = evaluation.outputs
        self.branch.calibrate(outputs["class_logits.main"], outputs["ova_logits.main"], evaluation.labels)

    def outputs(self, x: Tensor) -> Outputs:
        z, o = self.branch(x)
        return {"class_logits.main": z, "ova_logits.main": o}

    def predict(self, outputs: Outputs) -> dict[str, Prediction]:
        return {"main": Prediction(*self.branch.predict(outputs["class_logits.main"], outputs["ova_logits.main"]))}

    def monitors(self) -> dict[str, float]:
        return self.branch.monitors("main")


METHOD = CaliMatch
