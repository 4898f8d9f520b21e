"""ECGMatch as the published benchmark runs it: softmax, a random first teacher, no pre-training and no threshold.

    pbar = mean of the teacher's softmax over the 5 nearest other bank rows to the teacher's feature
    L = CE(z(weak(x_l)), y) + r(t) [KL(pbar || softmax(z(strong(x_u)))) + 0.5 || M(softmax(z_s)) - M(Y) ||_F]

M is the correlation between class columns, cut to [0, 1]; M(Y) is the identity. r is an exponential ramp over 500
iterations. The teacher averages parameters only: its batch-norm statistics stay at mean 0, variance 1 for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from safeecgmatch.engine.contract import Batch, Evaluation, Losses, Outputs, Prediction
from safeecgmatch.engine.models import ResNet1D
from safeecgmatch.engine.views import strong, weak
from safeecgmatch.methods.base import Context, Hyper, Method, Switches
from safeecgmatch.methods.ecgmatch.bank import Bank, similar_rows
from safeecgmatch.methods.ecgmatch.losses import relationship_loss, relationship_pearson
from safeecgmatch.methods.parts.losses import cross_entropy, exponential_ramp, soft_cross_entropy
from safeecgmatch.methods.parts.teacher import Teacher


class ECGMatchHyper(Hyper):
    neighbours: int
    ema_decay: float


class ECGMatchSwitches(Switches):
    teacher_bn: Literal["frozen", "copy", "ema"]
    lambda_u: float
    lambda_rel: float
    ramp: int
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


@dataclass(frozen=True)
class Step:
    supervised: Tensor
    neighbour: Tensor
    relationship: Tensor


def step(z_l: Tensor, y_l: Tensor, z_s: Tensor, targets: Targets, weighted: bool, wanted: Tensor) -> Step:
    """The three losses on plain logits; `wanted` (K, K) is the relationship target."""
    p = targets.probabilities.to(z_s.dtype)
    divergence = torch.xlogy(p, p).sum(dim=1) + soft_cross_entropy(z_s, p)
    matrix = relationship_pearson(z_s.softmax(dim=1))
    return Step(
        cross_entropy(z_l, y_l),
        (divergence * targets.agreement.to(z_s.dtype) if weighted else divergence).mean(),
        relationship_loss(matrix, wanted.to(matrix.dtype)),
    )


class ECGMatchRelease(Method):
    Hyper = ECGMatchHyper
    Switches = ECGMatchSwitches

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.network = ResNet1D(self.setting.leads, self.setting.num_classes, self.setting.width)
        self.teacher = Teacher(self.network)
        self.bank: Bank | None = None
        self.teacher_accuracy: float | None = None

    def before_step(self, n: int) -> None:
        if self.bank is None:
            views = (weak(x, self.rng("bank")) for _, x in self.data.pool.batches(128))
            self.bank = Bank.filled(self._teacher(), views, lambda logits: logits.softmax(dim=1))

    def losses(self, batch: Batch, n: int) -> Iterator[Losses]:
        views, switches = self.rng("views"), self.switches
        x_l, x_w = weak(batch.x_l, views), weak(batch.x_u, views)
        x_s = strong(batch.x_u, views, self.setting.sampling_rate)
        z_l = self.network(x_l)
        targets = self._targets(batch.position_u, x_w)
        z_s = self.network(x_s)  # a forward of its own, after the labelled one: batch statistics are not shared
        result = step(z_l, batch.y_l, z_s, targets, switches.agreement_weight, self._wanted())
        unlabelled = switches.lambda_u * result.neighbour + switches.lambda_rel * result.relationship
        yield Losses(
            total=result.supervised + exponential_ramp(n, self.setting.scaled(switches.ramp)) * unlabelled,
            terms=dict(vars(result)),
            accepted=torch.ones_like(batch.position_u, dtype=torch.bool),  # no threshold
            pseudo=targets.probabilities.argmax(dim=1),
        )

    @torch.no_grad()
    def _targets(self, positions: Tensor, x_w: Tensor) -> Targets:
        """In full precision: neighbours are told apart by small differences."""
        assert self.bank is not None, "filled before the first step"
        with torch.autocast(x_w.device.type, enabled=False):
            teacher = self._teacher()
            features = teacher.features(x_w)
            self.bank.write(positions, features, teacher.fc(features).softmax(dim=1))
            return neighbour_targets(features, positions, self.bank.features, self.bank.scores, self.hyper.neighbours)

    def _teacher(self) -> ResNet1D:
        return cast(ResNet1D, self.teacher.network.to(self.rng.device))

    def _wanted(self) -> Tensor:
        labels = self.data.labelled.labels
        assert labels is not None, "labelled records have labels"
        return relationship_pearson(F.one_hot(labels, self.setting.num_classes).float())

    def after_step(self, n: int) -> None:
        self.teacher.ema_(self.network, self.hyper.ema_decay, self.switches.teacher_bn)

    def after_outputs(self, evaluation: Evaluation) -> None:
        logits = torch.cat([self.teacher(x) for _, x in self.data.validation.batches(128)])
        self.teacher_accuracy = float((logits.argmax(dim=1) == evaluation.labels).double().mean())

    def monitors(self) -> dict[str, float]:
        return {} if self.teacher_accuracy is None else {"teacher_accuracy": self.teacher_accuracy}

    def outputs(self, x: Tensor) -> Outputs:
        return {"class_logits.main": self.network(x)}

    def predict(self, outputs: Outputs) -> dict[str, Prediction]:
        return {"main": Prediction(outputs["class_logits.main"].log_softmax(dim=1))}

    def memory(self) -> dict[str, Any]:
        return {"teacher": self.teacher.state(), "bank": None if self.bank is None else self.bank.state()}

    def load_memory(self, memory: dict[str, Any]) -> None:
        self.teacher.load(memory["teacher"])
        self.bank = None if memory["bank"] is None else Bank.restored(memory["bank"], self.rng.device)


METHOD = ECGMatchRelease
