"""CaliMatch (Bae et al., ICCV 2025): pseudo-labels from a calibrated classifier and a calibrated one-vs-all detector.

Per iteration one forward of [labelled weak | unlabelled weak 1 | weak 2 | strong] gives class logits z and one-vs-all
logits o, and (equation numbers of the SafeECGMatch paper, whose branches are this method)

    L = L_cls + lambda_ood L_ood + lambda_socr L_socr                                              Eqs. (8)-(10)
      + lambda_cls-cal L_cls-cal + lambda_ood-cal L_ood-cal + lambda_fix L_fix   from `start` on   Eqs. (13), (14), (17)

L_cls-cal and L_ood-cal pull the tempered probabilities towards the accuracy that validation records of the same
confidence have (`parts/smoothing.py`). L_fix takes the records with S > T1 and C > T2, Eqs. (15)-(16).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor, nn

from safeecgmatch.engine.contract import Batch, Evaluation, Losses, Outputs, Prediction
from safeecgmatch.engine.method import Context, Method
from safeecgmatch.engine.models import ResNet1D
from safeecgmatch.engine.views import strong, weak
from safeecgmatch.methods.calimatch.step import CaliMatchHyper, CaliMatchSwitches, Heads, step
from safeecgmatch.methods.parts.branch import Branch


def new_branch(
    network: ResNet1D, hyper: CaliMatchHyper, switches: CaliMatchSwitches, calibrated: bool = True
) -> Branch:
    ova = nn.Linear(network.dim, 2 * network.fc.out_features, bias=False)
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

    def __init__(self, context: Context[CaliMatchHyper, CaliMatchSwitches]) -> None:
        super().__init__(context)
        self.branch = new_branch(self.make_network(), self.hyper, self.switches)
        self.start = self.setting.moment(self.switches.start)

    def before_step(self, n: int) -> None:
        if n == self.start:
            self.after_outputs(self.validate_now(n))

    def losses(self, batch: Batch, n: int) -> Iterator[Losses]:
        heads = heads_of(self.branch, four_views(batch, self.rng("views"), self.setting.sampling_rate))
        yield step(batch.y_l, heads, self.branch.calibration(), self.hyper, self.switches, n >= self.start)

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
