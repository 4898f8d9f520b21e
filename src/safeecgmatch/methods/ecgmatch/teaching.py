"""What both ECGMatch have: a student, its averaged teacher, and a bank of what the teacher last said of the pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from safeecgmatch.config import Decay, Positive, Weight
from safeecgmatch.engine.contract import Evaluation
from safeecgmatch.engine.method import Context, Hyper, SingleNetwork, Switches
from safeecgmatch.engine.models import ResNet1D
from safeecgmatch.methods.ecgmatch.bank import Bank
from safeecgmatch.methods.parts.teacher import Teacher


class ECGMatchHyper(Hyper):
    neighbours: Positive
    ema_decay: Decay


class TeachingSwitches(Switches):
    teacher_bn: Literal["frozen", "copy", "ema"]
    lambda_u: Weight
    lambda_rel: Weight


T = TypeVar("T", bound=TeachingSwitches)


class Taught(SingleNetwork[ECGMatchHyper, T]):
    """The teacher follows, and is judged on validation, as long as there is a bank."""

    Hyper = ECGMatchHyper

    def __init__(self, context: Context[ECGMatchHyper, T]) -> None:
        super().__init__(context)
        self.teacher = Teacher(self.network)
        self.bank: Bank | None = None
        self.teacher_accuracy: float | None = None

    def teacher_network(self) -> ResNet1D:
        return cast(ResNet1D, self.teacher.network.to(self.rng.device))

    def relationship_target(self, relationship: Callable[[Tensor], Tensor]) -> Tensor:
        """That of the one-hot labels of all labelled records."""
        labels = self.data.labelled.labels
        assert labels is not None, "labelled records have labels"
        return relationship(F.one_hot(labels, self.setting.num_classes).float())

    def after_step(self, n: int) -> None:
        if self.bank is not None:
            self.teacher.ema_(self.network, self.setting.decay(self.hyper.ema_decay), self.switches.teacher_bn)

    def after_outputs(self, evaluation: Evaluation) -> None:
        if self.bank is not None:
            logits = torch.cat([self.teacher(x) for _, x in self.data.validation.batches(128)])
            self.teacher_accuracy = (logits.argmax(dim=1) == evaluation.labels).double().mean().item()

    def monitors(self) -> dict[str, float]:
        return {} if self.teacher_accuracy is None else {"teacher_accuracy": self.teacher_accuracy}

    def memory(self) -> dict[str, Any]:
        return {"teacher": self.teacher.state(), "bank": None if self.bank is None else self.bank.state()}

    def load_memory(self, memory: dict[str, Any]) -> None:
        self.teacher.load(memory["teacher"])
        self.bank = None if memory["bank"] is None else Bank.restored(memory["bank"], self.rng.device)
