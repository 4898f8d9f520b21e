"""SafeStudent (He et al., CVPR 2022): a teacher splits the pool by its energy discrepancy into seen and unseen.

    ED(t) = T ln sum_k e^(t_k/T) - T ln(sum_k e^(t_k/T) - max_k e^(t_k/T) + 1e-5),  t the teacher's logits
    S = {ED > h}, N = {ED < l};  L = CE(a(x_l), y) + l_seen [CE_S(s, argmax t) + KL_S(t || s)] + l_unif U_N(s)
    U = KL(uniform || softmax(s)), s the student's logits on strong views

Phase 1 is supervised and does not compete for the best weights; its best network becomes teacher and student. Under
`paper` h and l are percentiles of the batch, and twice the best student so far becomes the teacher. Under `release`
h is the OOD ratio and l = h - 0.1, so that with three classes, where ED >= ln 1.5, hardly anything is ever unseen, and
an average that moves by 0.4 % three times leaves the teacher frozen.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch

from safeecgmatch.engine.contract import Batch, Evaluation, Losses, Outputs, Prediction
from safeecgmatch.engine.method import Context, SingleNetwork
from safeecgmatch.engine.views import strong, weak
from safeecgmatch.methods.parts.losses import cross_entropy
from safeecgmatch.methods.parts.teacher import Teacher
from safeecgmatch.methods.safestudent.energy import energy_discrepancy
from safeecgmatch.methods.safestudent.step import StudentHyper, StudentSwitches, step

PHASE_ONE = 5  # one evaluation in five belongs to it
ROUNDS = 3


class SafeStudent(SingleNetwork[StudentHyper, StudentSwitches]):
    Hyper = StudentHyper
    Switches = StudentSwitches

    def __init__(self, context: Context[StudentHyper, StudentSwitches]) -> None:
        super().__init__(context)
        self.teacher, self.kept = Teacher(self.network), Teacher(self.network)
        self.kept_accuracy = -1.0  # of the best network of this phase, `kept`
        self.kept_optimizer: dict[str, Any] | None = None
        every = self.setting.epoch
        evaluations = -(-self.setting.iterations // every)
        first = max(1, evaluations // PHASE_ONE)
        rest = evaluations - first
        self.phase_one = first * every
        self.round_ends = {(first + rest * i // ROUNDS) * every for i in range(1, ROUNDS)} - {self.phase_one}

    def in_force(self) -> dict[str, Any]:
        return super().in_force() | {"phase_one": self.phase_one, "round_ends": sorted(self.round_ends)}

    def losses(self, batch: Batch, n: int) -> Iterator[Losses]:
        views = self.rng("views")
        x_l = weak(batch.x_l, views)
        if n < self.phase_one:
            supervised = cross_entropy(self.network(x_l), batch.y_l)
            nothing = torch.zeros_like(batch.position_u)
            yield Losses(supervised, {"supervised": supervised}, accepted=nothing.bool(), pseudo=nothing)
            return
        t = self.teacher(weak(batch.x_u, views) if self.switches.teacher_view == "weak" else batch.x_u)
        z = self.network(torch.cat([x_l, strong(batch.x_u, views, self.setting.sampling_rate)]))
        z_l, s = z.split([len(x_l), len(batch.x_u)])
        yield step(z_l, batch.y_l, t, s, self.setting.ood_level / 100, self.hyper, self.switches)

    def after_step(self, n: int) -> None:
        due = (n + 1) % self.setting.moment(self.hyper.teacher_every) == 0
        if self.switches.teacher_update == "ema" and due and n + 1 > self.phase_one:
            self.teacher.ema_(self.network, self.setting.decay(self.hyper.teacher_decay), "frozen")

    def after_evaluation(self, evaluation: Evaluation) -> None:
        if evaluation.accuracy > self.kept_accuracy:
            self.kept.copy_from(self.network)
            self.kept_accuracy = evaluation.accuracy
            if not self.competes(evaluation.iteration) and not self.switches.restart_optimizer:
                self.kept_optimizer = copy.deepcopy(self.optimizer.state_dict())
        if evaluation.iteration == self.phase_one:
            self.network.load_state_dict(self.kept.state())
            if self.kept_optimizer is not None:
                self.optimizer.load_state_dict(self.kept_optimizer)
            self.begin_round()
            self.kept_accuracy, self.kept_optimizer = -1.0, None
        elif self.switches.teacher_update == "rounds" and evaluation.iteration in self.round_ends:
            self.begin_round()

    def begin_round(self) -> None:
        self.teacher.copy_from(self.kept.network)
        if self.switches.restart_optimizer:
            self.restart_optimizer()

    def competes(self, iteration: int) -> bool:
        return iteration > self.phase_one

    def must_beat_early_phases(self) -> bool:
        return self.switches.selection_includes_pretrain

    def predict(self, outputs: Outputs) -> dict[str, Prediction]:
        """Unseen score: the student's energy discrepancy, which is large for seen classes, with a minus sign."""
        z = outputs["class_logits.main"]
        return {"main": Prediction(z.log_softmax(dim=1), -energy_discrepancy(z, self.switches.temperature))}

    def memory(self) -> dict[str, Any]:
        best = {"accuracy": self.kept_accuracy, "weights": self.kept.state(), "optimizer": self.kept_optimizer}
        return {"teacher": self.teacher.state(), "best": best}

    def load_memory(self, memory: dict[str, Any]) -> None:
        self.teacher.load(memory["teacher"])
        self.kept.load(memory["best"]["weights"])
        self.kept_accuracy, self.kept_optimizer = memory["best"]["accuracy"], memory["best"]["optimizer"]


METHOD = SafeStudent
