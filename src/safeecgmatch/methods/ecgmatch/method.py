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
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from safeecgmatch.engine.contract import Batch, Evaluation, Losses, Outputs
from safeecgmatch.engine.method import Context
from safeecgmatch.engine.views import strong, weak
from safeecgmatch.methods.ecgmatch.bank import Bank
from safeecgmatch.methods.ecgmatch.losses import RELATIONSHIPS, weighted_binary_cross_entropy
from safeecgmatch.methods.ecgmatch.step import ECGMatchSwitches, Targets, neighbour_targets, step
from safeecgmatch.methods.ecgmatch.teaching import ECGMatchHyper, Taught
from safeecgmatch.methods.ecgmatch.views import ecg_augment


class ECGMatch(Taught[ECGMatchSwitches]):
    """The bank, and with it the teaching, begins at the end of the pre-training."""

    Switches = ECGMatchSwitches

    def __init__(self, context: Context[ECGMatchHyper, ECGMatchSwitches]) -> None:
        super().__init__(context)
        self.best_accuracy, self.best_weights = -1.0, self.teacher.state()  # of the pre-training

    @property
    def pretraining(self) -> int:
        """Iterations of the supervised phase: up to an evaluation, at least one."""
        every = self.setting.epoch
        evaluations = max(1, -(-self.setting.moment(self.switches.pretraining) // every))
        return min(evaluations * every, self.setting.iterations)

    def in_force(self) -> dict[str, Any]:
        return super().in_force() | {"pretraining": self.pretraining}

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
        wanted = self.relationship_target(RELATIONSHIPS[self.switches.relationship])
        yield step(z_l, y_l, z_w, z_s, targets, wanted, self.switches)

    def _view(self, x: Tensor, strength: Literal["weak", "strong"]) -> Tensor:
        generator = self.rng("views")
        if self.switches.views == "ecg_augment":
            return ecg_augment(x, generator, strength)
        return weak(x, generator) if strength == "weak" else strong(x, generator, self.setting.sampling_rate)

    @torch.no_grad()
    def _targets(self, bank: Bank, positions: Tensor, x_w: Tensor) -> Targets:
        """Both networks in evaluation mode, in full precision: neighbours differ little."""
        with torch.autocast(x_w.device.type, enabled=False):
            teacher = self.teacher_network()
            features = teacher.features(x_w)
            bank.write(positions, features, torch.sigmoid(teacher.fc(features)))
            self.network.eval()
            queries = self.network.features(x_w)
            self.network.train()
            return neighbour_targets(queries, bank.features, bank.scores, self.hyper.neighbours)

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
            self.bank = Bank.filled(self.teacher_network(), raw, torch.sigmoid)

    def competes(self, iteration: int) -> bool:
        return iteration > self.pretraining

    def monitors(self) -> dict[str, float]:
        """With the accuracy of the weights that the teaching starts from, as soon as there are any."""
        early = {"pretraining_accuracy": self.best_accuracy} if self.best_accuracy >= 0 else {}
        return early | super().monitors()

    def outputs(self, x: Tensor) -> Outputs:
        return {"class_logits.main": F.logsigmoid(self.network(x))}

    def memory(self) -> dict[str, Any]:
        return super().memory() | {"best_accuracy": self.best_accuracy, "best_weights": self.best_weights}

    def load_memory(self, memory: dict[str, Any]) -> None:
        super().load_memory(memory)
        self.best_accuracy, self.best_weights = memory["best_accuracy"], memory["best_weights"]


METHOD = ECGMatch
