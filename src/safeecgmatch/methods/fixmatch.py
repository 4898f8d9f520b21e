"""FixMatch (Sohn et al., NeurIPS 2020): consistency between a weak and a strong view of confident records.

    p = softmax(z(weak(x_u))),  y^ = argmax p,  M = {max p >= 0.95}
    L = mean CE(z(weak(x_l)), y) + w(n) * (1/B) sum_{i in M} CE(z(strong(x_u))_i, y^_i)

One forward of [x_l | x_w | x_s], so that all views share their batch statistics. Under `release` the mean is over M,
the threshold is strict and w is an exponential ramp of 500 iterations; under `paper` w is 1 after the warm-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from safeecgmatch.losses import accept_confident, cross_entropy, exponential_ramp, pseudo_label_loss
from safeecgmatch.methods.base import Batch, Hyper, Losses, Method, Outputs, Prediction, Switches
from safeecgmatch.models import ResNet1D
from safeecgmatch.views import strong, weak


class FixMatchHyper(Hyper):
    threshold: float
    lambda_u: float


class FixMatchSwitches(Switches):
    threshold_strict: bool
    start: int
    ramp: int
    average_over: Literal["batch", "selected"]


@dataclass(frozen=True)
class Step:
    """The mathematics of one iteration on plain logits."""

    supervised: Tensor
    unsupervised: Tensor
    accepted: Tensor
    pseudo: Tensor


def step(z_l: Tensor, y_l: Tensor, z_w: Tensor, z_s: Tensor, threshold: float, strict: bool, average_over: str) -> Step:
    pseudo, accepted = accept_confident(z_w, threshold, strict)
    return Step(cross_entropy(z_l, y_l), pseudo_label_loss(z_s, pseudo, accepted, average_over), accepted, pseudo)


class FixMatch(Method):
    Hyper = FixMatchHyper
    Switches = FixMatchSwitches

    def __init__(self, *context: Any) -> None:
        super().__init__(*context)
        self.network = ResNet1D(self.setting.leads, self.setting.num_classes, self.setting.width)

    def losses(self, batch: Batch, n: int) -> Iterator[Losses]:
        views, rate = self.rng("views"), self.setting.sampling_rate
        x = torch.cat([weak(batch.x_l, views), weak(batch.x_u, views), strong(batch.x_u, views, rate)])
        z_l, z_w, z_s = self.network(x).split([len(batch.x_l), len(batch.x_u), len(batch.x_u)])
        switches = self.switches
        result = step(z_l, batch.y_l, z_w, z_s, self.hyper.threshold, switches.threshold_strict, switches.average_over)
        active = n >= self.setting.scaled(switches.start)
        weight = self.hyper.lambda_u * exponential_ramp(n, self.setting.scaled(switches.ramp)) if active else 0.0
        unsupervised = result.unsupervised if active else torch.zeros_like(result.unsupervised)
        yield Losses(
            total=result.supervised + weight * unsupervised,
            terms={"supervised": result.supervised, "pseudo": unsupervised},
            accepted=result.accepted & active,
            pseudo=result.pseudo,
        )

    def outputs(self, x: Tensor) -> Outputs:
        return {"class_logits.main": self.network(x)}

    def predict(self, outputs: Outputs) -> dict[str, Prediction]:
        return {"main": Prediction(outputs["class_logits.main"].log_softmax(dim=1))}


METHOD = FixMatch
