"""The contract between a method and the training loop.

A method owns its networks, decides which views of a batch it needs, and yields named losses. The loop owns data order,
optimiser, evaluation, selection, checkpoints and monitoring, and knows no method by name. To add a method, write one
folder `methods/<name>/` with a subclass named `METHOD` in method.py and a protocol.yaml, and a section in params.yaml.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from safeecgmatch.config import Strict
from safeecgmatch.engine.contract import FULL_EPOCH, Batch, Evaluation, Losses, Outputs, Prediction, Setting
from safeecgmatch.engine.generators import Generators
from safeecgmatch.engine.models import ResNet1D
from safeecgmatch.engine.signals import MethodData, SignalSet
from safeecgmatch.errors import UserError
from safeecgmatch.protocols import method_module


class Hyper(Strict):
    """A method's section in params.yaml but its switches: what is the same under both protocols."""


class Switches(Strict):
    """What differs between the protocols, for this method; every method has at least these two."""

    batch_order: Literal["reshuffled", "fixed"]
    stop_at_val_1: bool


H = TypeVar("H", bound=Hyper)
S = TypeVar("S", bound=Switches)


@dataclass(frozen=True)
class Context(Generic[H, S]):
    """What a method is made from: its cell, its section of params.yaml, its switches, its data and its randomness."""

    setting: Setting
    hyper: H
    switches: S
    data: MethodData
    rng: Generators


class Method(nn.Module, ABC, Generic[H, S]):
    """Subclass, set the class attributes, write `losses`, `outputs` and `predict`; override a hook where needed.

    What belongs to the model (weights, temperatures, tables) is a parameter or buffer and ends in model.safetensors.
    What belongs to the training only (queues, banks, teachers) goes through `memory` and `load_memory`.
    """

    Hyper: ClassVar[type[Hyper]] = Hyper
    Switches: ClassVar[type[Switches]] = Switches
    uses_unlabelled: ClassVar[bool] = True

    optimizer: torch.optim.Optimizer  # set by the loop before the first step

    def __init__(self, context: Context[H, S]) -> None:
        super().__init__()
        self.setting, self.data, self.rng = context.setting, context.data, context.rng
        self.hyper: H = context.hyper
        self.switches: S = context.switches

    def make_network(self) -> ResNet1D:
        return ResNet1D(self.setting.leads, self.setting.num_classes, self.setting.width)

    @abstractmethod
    def losses(self, batch: Batch, n: int) -> Iterator[Losses]:
        """Yield one or more losses for iteration `n` (optimiser iterations already made); the loop sums gradients."""

    @abstractmethod
    def outputs(self, x: Tensor) -> Outputs:
        """Raw head outputs for un-augmented records, evaluation mode."""

    @abstractmethod
    def predict(self, outputs: Outputs) -> dict[str, Prediction]:
        """Final predictions per branch, from raw head outputs and the current temperatures; a pure function."""

    def reported_branch(self) -> str:
        """The branch whose accuracy selects the weights and whose numbers are the method's row."""
        return "main"

    def before_step(self, n: int) -> None:
        """Called before iteration `n` is drawn, in training mode."""

    def after_step(self, n: int) -> None:
        """Called after the optimiser's step of iteration `n`, without gradients (EMA teachers, clamps)."""

    def after_outputs(self, evaluation: Evaluation) -> None:
        """Called with the validation outputs, before predictions are made of them (tables, temperatures, branch)."""

    def after_evaluation(self, evaluation: Evaluation) -> None:
        """Called when the evaluation's accuracy is known and the best weights are stored (phases, teacher rounds)."""

    def competes(self, iteration: int) -> bool:
        """Whether an evaluation after `iteration` iterations may give the best weights (False in early phases)."""
        return True

    def epoch(self) -> int:
        """Iterations of one epoch of the published code where that is a clock: fixed order, thresholds, passes.

        An epoch that is shorter than the paper's (the demo's) becomes long enough here to see every pool record once.
        """
        epoch, batch = self.setting.epoch, self.setting.unlabelled_batch
        if epoch >= FULL_EPOCH or not batch:
            return epoch
        return max(epoch, -(-len(self.data.pool) // batch))

    def in_force(self) -> dict[str, Any]:
        """What the schedule comes to in this budget, for config.yaml: moments in iterations, decays per iteration."""
        values: dict[str, Any] = {"epoch": self.epoch(), "warm_up": self.setting.warm_up}
        for section in (self.hyper, self.switches):
            for name, info in type(section).model_fields.items():
                if "moment" in info.metadata:
                    values[name] = self.setting.moment(getattr(section, name))
                elif "decay" in info.metadata:
                    values[name] = self.setting.decay(getattr(section, name))
        return values

    def must_beat_early_phases(self) -> bool:
        """Whether a competing evaluation must also exceed the best of the phases that do not compete."""
        return False

    def monitors(self) -> dict[str, float]:
        """Numbers for the history besides the losses, such as `temperature.class.time`."""
        return {}

    def memory(self) -> dict[str, Any]:
        """Training-only state as tensors and plain values, for the checkpoint."""
        return {}

    def load_memory(self, memory: dict[str, Any]) -> None:
        """Restore what `memory` gave."""

    @torch.no_grad()
    def outputs_on(self, signals: SignalSet, batch_size: int = 128) -> Outputs:
        """Raw outputs for a whole set, in order, evaluation mode; the mode is put back afterwards."""
        was_training = self.training
        self.eval()
        parts = [self.outputs(x) for _, x in signals.batches(batch_size)]
        self.train(was_training)
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def validate_now(self, n: int) -> Evaluation:
        """The validation set through the current networks, between two evaluations of the loop."""
        validation = self.data.validation
        assert validation.labels is not None, "validation records have labels that a method may see"
        return Evaluation(n, self.outputs_on(validation), validation.labels)

    def restart_optimizer(self) -> None:
        """Adam with empty moments, from the next step on."""
        self.optimizer.state.clear()


class SingleNetwork(Method[H, S]):
    """One backbone whose class logits are the prediction."""

    def __init__(self, context: Context[H, S]) -> None:
        super().__init__(context)
        self.network = self.make_network()

    def outputs(self, x: Tensor) -> Outputs:
        return {"class_logits.main": self.network(x)}

    def predict(self, outputs: Outputs) -> dict[str, Prediction]:
        return {"main": Prediction(outputs["class_logits.main"].log_softmax(dim=1))}


def method_class(module: str) -> type[Method]:
    """The class `METHOD` of a method's module; imported by name, so that adding a method touches no other."""
    name = method_module(module)
    file = f"src/{name.replace('.', '/')}.py"
    try:
        found = getattr(importlib.import_module(name), "METHOD", None)
    except ModuleNotFoundError as error:
        if not name.startswith(str(error.name)):
            raise
        raise UserError(f"no method '{module}': {file} does not exist.") from None
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError(f"{file} names no subclass of Method as METHOD; add `METHOD = YourMethod` at its end.")
    return found
