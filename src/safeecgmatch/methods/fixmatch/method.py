"""FixMatch (Sohn et al., NeurIPS 2020): consistency between a weak and a strong view of confident records.

    p = softmax(z(weak(x_u))),  y^ = argmax p,  M = {max p >= 0.95}
    L = mean CE(z(weak(x_l)), y) + w(n) * (1/B) sum_{i in M} CE(z(strong(x_u))_i, y^_i)

One forward of [x_l | x_w | x_s], so that all views share their batch statistics. Under `release` the mean is over M,
the threshold is strict and w is an exponential ramp of 500 iterations; under `paper` w is 1 after the warm-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from safeecgmatch.config import Moment, Share, Weight
from safeecgmatch.engine.contract import Batch, Losses
from safeecgmatch.engine.method import Hyper, SingleNetwork, Switches
from safeecgmatch.engine.views import strong, weak
from safeecgmatch.methods.parts.losses import accept_confident, cross_entropy, exponential_ramp, pseudo_label_loss


class FixMatchHyper(Hyper):
    threshold: Share
    lambda_u: Weight


class FixMatchSwitches(Switches):
    threshold_strict: bool
    start: Moment
    ramp: Moment
    average_over: Literal["batch", "selected"]


def step(
    z_l: Tensor, y_l: Tensor, z_w: Tensor, z_s: Tensor, hyper: FixMatchHyper, switches: FixMatchSwitches, weight: float
) -> Losses:
    """One iteration on plain logits; where `weight`, lambda_u w(n), is 0 nothing is accepted and L_u is exactly 0."""
    pseudo, accepted = accept_confident(z_w, hyper.threshold, switches.threshold_strict)
    accepted = accepted & (weight > 0)
    supervised = cross_entropy(z_l, y_l)
    unsupervised = pseudo_label_loss(z_s, pseudo, accepted, switches.average_over)
    terms = {"supervised": supervised, "pseudo": unsupervised}
    return Losses(supervised + weight * unsupervised, terms, accepted, pseudo)


class FixMatch(SingleNetwork[FixMatchHyper, FixMatchSwitches]):
    Hyper = FixMatchHyper
    Switches = FixMatchSwitches

    def losses(self, batch: Batch, n: int) -> Iterator[Losses]:
        views, rate = self.rng("views"), self.setting.sampling_rate
        x = torch.cat([weak(batch.x_l, views), weak(batch.x_u, views), strong(batch.x_u, views, rate)])
        z_l, z_w, z_s = self.network(x).split([len(batch.x_l), len(batch.x_u), len(batch.x_u)])
        yield step(z_l, batch.y_l, z_w, z_s, self.hyper, self.switches, self.weight(n))

    def weight(self, n: int) -> float:
        """lambda_u w(n): 0 before `start`, then 1 or a ramp, as the protocol says."""
        if n < self.setting.moment(self.switches.start):
            return 0.0
        return self.hyper.lambda_u * exponential_ramp(n, self.setting.moment(self.switches.ramp))


METHOD = FixMatch
