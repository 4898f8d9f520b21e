"""ECGMatch as the published benchmark runs it: softmax, a random first teacher, no pre-training and no threshold.

    pbar = mean of the teacher's softmax over the 5 nearest other bank rows to the teacher's feature
    L = CE(z(weak(x_l)), y) + r(t) [KL(pbar || softmax(z(strong(x_u)))) + 0.5 || M(softmax(z_s)) - M(Y) ||_F]

M is the correlation between class columns, cut to [0, 1]; M(Y) is the identity. r is an exponential ramp over 500
iterations. The teacher averages parameters only: its batch-norm statistics stay at mean 0, variance 1 for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from safeecgmatch.config import Moment
from safeecgmatch.engine.contract import Batch, Losses
from safeecgmatch.engine.views import strong, weak
from safeecgmatch.methods.ecgmatch.bank import Bank, similar_rows
from safeecgmatch.methods.ecgmatch.losses import relationship_loss, relationship_pearson
from safeecgmatch.methods.ecgmatch.teaching import Taught, TeachingSwitches
from safeecgmatch.methods.parts.losses import cross_entropy, exponential_ramp, soft_cross_entropy


class ECGMatchSwitches(TeachingSwitches):
    ramp: Moment
    agreement_weight: bool


@dataclass(frozen=True)
class Targets:
    nearest: Tensor  # (n, neighbours) rows of the bank
    probabilities: Tensor  # (n, K)
    agreement: Tensor  # (n,) confidence * (1 - disagreement)


def neighbour_targets(queries: Tensor, own: Tensor, features: Tensor, scores: Tensor, neighbours: int) -> Targets:
    """Mean prediction of the nearest other rows; disagreement = their std (n - 1), averaged over the classes."""
    nearest = similar_rows(queries, features, neighbours, own)
    found = scores[nearest]
    mean = found.mean(dim=1)
    mean = mean / mean.sum(dim=1, keepdim=True).clamp(min=1e-6)
    return Targets(nearest, mean, mean.amax(dim=1) * (1 - found.std(dim=1).mean(dim=1)))


def step(
    z_l: Tensor, y_l: Tensor, z_s: Tensor, targets: Targets, wanted: Tensor, ramp: float, switches: ECGMatchSwitches
) -> Losses:
    """One iteration on plain logits; `wanted` (K, K) is the relationship target. No threshold: every record is used."""
    p = targets.probabilities.to(z_s.dtype)
    divergence = torch.xlogy(p, p).sum(dim=1) + soft_cross_entropy(z_s, p)
    if switches.agreement_weight:
        divergence = divergence * targets.agreement.to(z_s.dtype)
    matrix = relationship_pearson(z_s.softmax(dim=1))
    terms = {
        "supervised": cross_entropy(z_l, y_l),
        "neighbour": divergence.mean(),
        "relationship": relationship_loss(matrix, wanted.to(matrix.dtype)),
    }
    unlabelled = switches.lambda_u * terms["neighbour"] + switches.lambda_rel * terms["relationship"]
    return Losses(
        terms["supervised"] + ramp * unlabelled,
        terms,
        accepted=torch.ones(len(z_s), dtype=torch.bool, device=z_s.device),
        pseudo=targets.probabilities.argmax(dim=1),
    )


class ECGMatchRelease(Taught[ECGMatchSwitches]):
    Switches = ECGMatchSwitches

    def before_step(self, n: int) -> None:
        if self.bank is None:
            views = (weak(x, self.rng("bank")) for _, x in self.data.pool.batches(128))
            self.bank = Bank.filled(self.teacher_network(), views, lambda logits: logits.softmax(dim=1))

    def losses(self, batch: Batch, n: int) -> Iterator[Losses]:
        views, switches = self.rng("views"), self.switches
        x_l, x_w = weak(batch.x_l, views), weak(batch.x_u, views)
        x_s = strong(batch.x_u, views, self.setting.sampling_rate)
        z_l = self.network(x_l)
        targets = self._targets(batch.position_u, x_w)
        z_s = self.network(x_s)  # a forward of its own, after the labelled one: batch statistics are not shared
        ramp = exponential_ramp(n, self.setting.moment(switches.ramp))
        wanted = self.relationship_target(relationship_pearson)
        yield step(z_l, batch.y_l, z_s, targets, wanted, ramp, switches)

    @torch.no_grad()
    def _targets(self, positions: Tensor, x_w: Tensor) -> Targets:
        """In full precision: neighbours differ little."""
        assert self.bank is not None, "filled before the first step"
        with torch.autocast(x_w.device.type, enabled=False):
            teacher = self.teacher_network()
            features = teacher.features(x_w)
            self.bank.write(positions, features, teacher.fc(features).softmax(dim=1))
            return neighbour_targets(features, positions, self.bank.features, self.bank.scores, self.hyper.neighbours)


METHOD = ECGMatchRelease
