"""The contract between a method and the training loop.

A method owns its networks, decides which views of a batch it needs, and yields named losses. The loop owns data order,
optimiser, evaluation, selection, checkpoints and monitoring, and knows no method by name. To add a method, write one
file `methods/<name>.py` with a subclass named `METHOD`, one section in protocols.yaml and one in params.yaml.
"""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from safeecgmatch.config import Strict
from safeecgmatch.engine.fingerprint import method_module
from safeecgmatch.engine.generators import Generators
from safeecgmatch.engine.signals import MethodData, SignalSet
from safeecgmatch.errors import UserError

FULL_BUDGET = 50_000  # the budget for which all schedule numbers are stated
FULL_EPOCHS = 50  # one "epoch" of the published code is 1/50 of the budget


class Hyper(Strict):
    """A method's section in params.yaml: what is the same under both protocols."""

    switches: dict[str, Any]


class Switches(Strict):
    """What differs between the protocols, for this method; every method has at least these two."""

    batch_order: Literal["reshuffled", "fixed"]
    stop_at_val_1: bool


@dataclass(frozen=True)
class Setting:
    """All a method may know about its cell. `lambda_sum` and `variant` concern SafeECGMatch alone."""

    num_classes: int
    leads: int
    samples: int
    sampling_rate: int
    width: int
    iterations: int
    evaluate_every: int
    labelled_batch: int
    unlabelled_batch: int
    learning_rate: float
    seed: int
    ood_level: int
    variant: str = "full"
    lambda_sum: float | None = None

    def scaled(self, iterations: int) -> int:
        """A schedule number stated for 50,000 iterations, for this budget; at least 1 unless it is 0."""
        if iterations == 0:
            return 0
        return max(1, round(iterations * self.iterations / FULL_BUDGET))

    @property
    def epoch(self) -> int:
        """Iterations in one "epoch" of the published code (1,000 of 50,000)."""
        return max(1, round(self.iterations / FULL_EPOCHS))


@dataclass(frozen=True)
class Batch:
    """Raw records of one iteration, in millivolts (standardised where the dataset asks for it), on the device."""

    x_l: Tensor  # (B_l, leads, samples)
    y_l: Tensor  # (B_l,) 0..K-1
    x_u: Tensor  # (B_u, leads, samples); B_u is 0 for a method that uses no unlabelled records
    position_u: Tensor  # (B_u,) positions in the pool: rows of a memory bank
    record_l: Tensor  # (B_l,) rows of the signal store
    record_u: Tensor  # (B_u,)


@dataclass(frozen=True)
class Losses:
    """One backward pass. `terms` (unweighted) and `rates` go to the history, `accepted` and `pseudo` to the monitor."""

    total: Tensor
    terms: dict[str, Tensor]
    accepted: Tensor | None = None  # (B_u,) bool: unlabelled records used with a pseudo-label
    pseudo: Tensor | None = None  # (B_u,) their pseudo-labels
    step: bool = False  # True: the optimiser steps before the method goes on (CompleMatch makes two steps)
    rates: dict[str, Tensor] = field(default_factory=dict)  # other means for the history, such as "mask_rate.freq"
    position: Tensor | None = None  # pool positions that `accepted` and `pseudo` speak of; None: those of the batch


@dataclass(frozen=True)
class Prediction:
    """What one branch says in the end: `softmax(log_probs)` are its probabilities."""

    log_probs: Tensor  # (N, K)
    ood_score: Tensor | None = None  # (N,), higher means more likely unseen; None: the method has no score of its own


Outputs = dict[str, Tensor]  # raw head outputs by "<head>.<branch>", such as "class_logits.time"


@dataclass(frozen=True)
class Evaluation:
    """The validation set through the current networks."""

    iteration: int  # optimiser iterations made so far
    outputs: Outputs
    labels: Tensor
    accuracy: float = field(default=float("nan"))


class Method(nn.Module):
    """Subclass, set the class attributes, write `losses`, `outputs` and `predict`; override a hook where needed.

    What belongs to the model (weights, temperatures, tables) is a parameter or buffer and ends in model.safetensors.
    What belongs to the training only (queues, banks, teachers) goes through `memory` and `load_memory`.
    """

    Hyper: ClassVar[type[Hyper]] = Hyper
    Switches: ClassVar[type[Switches]] = Switches
    uses_unlabelled: ClassVar[bool] = True

    optimizer: torch.optim.Optimizer  # set by the loop before the first step

    def __init__(self, setting: Setting, hyper: Any, switches: Any, data: MethodData, rng: Generators) -> None:
        super().__init__()
        self.setting, self.hyper, self.switches, self.data, self.rng = setting, hyper, switches, data, rng

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


def method_class(module: str) -> type[Method]:
    """The class `METHOD` of a method's module; imported by name, so that adding a method touches no other."""
    name = method_module(module)
    try:
        return importlib.import_module(name).METHOD
    except ModuleNotFoundError as error:
        if not name.startswith(str(error.name)):
            raise
        raise UserError(f"no method '{module}': src/{name.replace('.', '/')}.py does not exist.") from None
