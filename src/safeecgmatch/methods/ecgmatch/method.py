"""ECGMatch (Zhou et al., TPAMI 2024): soft targets from the neighbours of a record in a bank over the whole pool.

    pbar = mean of the teacher's sigmoids over the 5 nearest bank rows to the student's feature,  w = |2 pbar - 1|
    L = BCE(z(weak(x_l)), y) + 0.8 mean w BCE(z(strong(x_u)), pbar) + 1.2 || G(sigmoid(z(x_u))) - G(Y) ||_F

G is the cosine between class columns, cut to [0, 1]. Classes are independent sigmoids. A supervised pre-training comes
first; its best weights start student, teacher (EMA, batch-norm statistics copied) and banks. Our adaptation of the
original repository to this benchmark: backbone, optimiser, batches and views are the benchmark's; for single-label
records G(Y) is the identity; p_k = sigmoid(z_k) / sum_j sigmoid(z_j), as the original defines no distribution.
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
from safeecgmatch.methods.ecgmatch.losses import RELATIONSHIPS, relationship_loss, weighted_binary_cross_entropy
from safeecgmatch.methods.ecgmatch.views import ecg_augment
from safeecgmatch.methods.parts.teacher import Teacher


class ECGMatchHyper(Hyper):
    neighbours: int
    ema_decay: float


class ECGMatchSwitches(Switches):
    pretraining: int
    teacher_bn: Literal["frozen", "copy", "ema"]
    lambda_u: float
    lambda_rel: float
    views: Literal["benchmark", "ecg_augment"]
    relationship: Literal["cosine", "squared_pearson", "euclidean"]


@dataclass(frozen=True)
class Targets:
    nearest: Tensor  # (n, neighbours) rows of the bank
    scores: Tensor  # (n, K) in [0, 1], not normalised
    weights: Tensor  # (n, K)


def neighbour_targets(queries: Tensor, features: Tensor, scores: Tensor, neighbours: int) -> Targets:
    nearest = similar_rows(queries, features, neighbours)
    mean = scores[nearest].mean(dim=1)
    return Targets(nearest, mean, (2 * mean - 1).abs())


@dataclass(frozen=True)
class Step:
    supervised: Tensor
    neighbour: Tensor
    relationship: Tensor


def step(
    z_l: Tensor, y_l: Tensor, z_w: Tensor, z_s: Tensor, targets: Targets, wanted: Tensor, relationship: str = "cosine"
) -> Step:
    """The three losses on plain logits; `y_l` (n, K) zeros and ones, `wanted` (K, K) the relationship target."""
    matrix = RELATIONSHIPS[relationship](torch.sigmoid(torch.cat([z_w, z_s])))
    return Step(
        weighted_binary_cross_entropy(z_l, y_l),
        weighted_binary_cross_entropy(z_s, targets.scores, targets.weights.to(z_s.dtype)),
        relationship_loss(matrix, wanted.to(matrix.dtype)),
    )


class ECGMatch(Method):
    Hyper = ECGMatchHyper
    Switches = ECGMatchSwitches

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.network = ResNet1D(self.setting.leads, self.setting.num_classes, self.setting.width)
        self.teacher = Teacher(self.network)
        self.bank: Bank | None = None  # from the end of the pre-training on
        self.best_accuracy, self.best_weights = -1.0, self.teacher.state()  # of the pre-training
        self.teacher_accuracy: float | None = None

    @property
    def pretraining(self) -> int:
        """Iterations of the supervised phase: up to an evaluation, at least one."""
        every = self.setting.evaluate_every
        evaluations = max(1, -(-self.setting.scaled(self.switches.pretraining) // every))
        return min(evaluations * every, self.setting.iterations)

    def losses(self, batch: Batch, n: int) -> Iterator[Losses]:
        y_l, x_l = F.one_hot(batch.y_l, self.setting.num_classes), self._view(batch.x_l, "weak")
        if self.bank is None:
            supervised = weighted_binary_cross_entropy(self.network(x_l), y_l)
            nothing = torch.zeros_like(batch.position_u)
            yield Losses(supervised, {"supervised": supervised}, accepted=nothing.bool(), pseudo=nothing)
            return
        x_w, x_s = self._view(batch.x_u, "weak"), self._view(batch.x_u, "strong")
        targets = self._targets(self.bank, batch.position_u, x_w)
        z_l, z_w, z_s = self.network(torch.cat([x_l, x_w, x_s])).split([len(x_l), len(x_w), len(x_s)])
        result = step(z_l, y_l, z_w, z_s, targets, self._wanted(), self.switches.relationship)
        yield Losses(
            total=result.supervised
            + self.switches.lambda_u * result.neighbour
            + self.switches.lambda_rel * result.relationship,
            terms=dict(vars(result)),
            accepted=torch.ones_like(batch.position_u, dtype=torch.bool),  # the method has no threshold
            pseudo=targets.scores.argmax(dim=1),
        )

    def _view(self, x: Tensor, strength: Literal["weak", "strong"]) -> Tensor:
        generator = self.rng("views")
        if self.switches.views == "ecg_augment":
            return ecg_augment(x, generator, strength)
        return weak(x, generator) if strength == "weak" else strong(x, generator, self.setting.sampling_rate)

    @torch.no_grad()
    def _targets(self, bank: Bank, positions: Tensor, x_w: Tensor) -> Targets:
        """Both networks in evaluation mode, in full precision: neighbours are told apart by small differences."""
        with torch.autocast(x_w.device.type, enabled=False):
            teacher = self._teacher()
            features = teacher.features(x_w)
            bank.write(positions, features, torch.sigmoid(teacher.fc(features)))
            self.network.eval()
            queries = self.network.features(x_w)
            self.network.train()
            return neighbour_targets(queries, bank.features, bank.scores, self.hyper.neighbours)

    def _teacher(self) -> ResNet1D:
        return cast(ResNet1D, self.teacher.network.to(self.rng.device))

    def _wanted(self) -> Tensor:
        labels = self.data.labelled.labels
        assert labels is not None, "labelled records have labels"
        return RELATIONSHIPS[self.switches.relationship](F.one_hot(labels, self.setting.num_classes).float())

    def after_step(self, n: int) -> None:
        if self.bank is not None:
            self.teacher.ema_(self.network, self.hyper.ema_decay, self.switches.teacher_bn)

    def after_outputs(self, evaluation: Evaluation) -> None:
        if self.bank is not None:
            logits = torch.cat([self.teacher(x) for _, x in self.data.validation.batches(128)])
            self.teacher_accuracy = float((logits.argmax(dim=1) == evaluation.labels).double().mean())

    def after_evaluation(self, evaluation: Evaluation) -> None:
        if self.bank is not None:
            return
        if evaluation.accuracy > self.best_accuracy:
            weights = {name: value.clone() for name, value in self.network.state_dict().items()}
            self.best_accuracy, self.best_weights = evaluation.accuracy, weights
        if evaluation.iteration >= self.pretraining:
            self.network.load_state_dict(self.best_weights)
            self.teacher.copy_from(self.network)
            self.restart_optimizer()
            raw = (x for _, x in self.data.pool.batches(128))
            self.bank = Bank.filled(self._teacher(), raw, torch.sigmoid)

    def competes(self, iteration: int) -> bool:
        return iteration > self.pretraining

    def monitors(self) -> dict[str, float]:
        return {} if self.teacher_accuracy is None else {"teacher_accuracy": self.teacher_accuracy}

    def outputs(self, x: Tensor) -> Outputs:
        return {"class_logits.main": F.logsigmoid(self.network(x))}

    def predict(self, outputs: Outputs) -> dict[str, Prediction]:
        return {"main": Prediction(outputs["class_logits.main"].log_softmax(dim=1))}

    def memory(self) -> dict[str, Any]:
        return {
            "teacher": self.teacher.state(),
            "bank": None if self.bank is None else self.bank.state(),
            "best_accuracy": self.best_accuracy,
            "best_weights": self.best_weights,
        }

    def load_memory(self, memory: dict[str, Any]) -> None:
        self.teacher.load(memory["teacher"])
        self.bank = None if memory["bank"] is None else Bank.restored(memory["bank"], self.rng.device)
        self.best_accuracy, self.best_weights = memory["best_accuracy"], memory["best_weights"]


METHOD = ECGMatch
