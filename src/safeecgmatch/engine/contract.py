"""What passes between the training loop and a method; the method's own side is `engine/method.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from safeecgmatch.config import EPOCHS, WARM_UP

if TYPE_CHECKING:  # its constants are read where torch is not needed
    from torch import Tensor

FULL_BUDGET = 50_000  # the budget for which all schedule numbers are stated
TEMPERATURE_BOUNDS = (0.2, 5.0)
FULL_EPOCH = 1_000  # iterations of the paper's epoch, whatever the budget


@dataclass(frozen=True)
class Setting:
    """All a method may know about its cell. `lambda_sum` and `variant` concern SafeECGMatch alone."""

    num_classes: int
    leads: int
    samples: int
    sampling_rate: int
    width: int
    iterations: int
    epoch: int  # iterations between evaluations, and the clock of whatever a method does once per epoch
    warm_up: int  # iterations before the unlabelled losses of the paper's protocol begin
    labelled_batch: int
    unlabelled_batch: int
    learning_rate: float
    seed: int
    ood_level: int
    variant: str = "full"
    lambda_sum: float | None = None

    def moment(self, moment: int | str) -> int:
        """In iterations: "warm_up" and "4 epochs" whatever the budget; a number is stated for 50,000 and scales."""
        if isinstance(moment, int):
            return self.scaled(moment)
        return self.warm_up if moment == WARM_UP else int(moment.removesuffix(EPOCHS)) * self.epoch

    def scaled(self, iterations: int) -> int:
        """A schedule number stated for 50,000 iterations, for this budget; at least 1 unless it is 0."""
        if iterations == 0:
            return 0
        return max(1, round(iterations * self.iterations / FULL_BUDGET))

    def decay(self, decay: float) -> float:
        """Of an average, stated for 50,000 iterations: decay^(50,000 / budget) forgets as much over the whole run."""
        return decay ** (FULL_BUDGET / self.iterations)


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


Outputs = dict[str, "Tensor"]  # raw head outputs by "<head>.<branch>", such as "class_logits.time"


@dataclass(frozen=True)
class Evaluation:
    """The validation set through the current networks."""

    iteration: int  # optimiser iterations made so far
    outputs: Outputs
    labels: Tensor
    accuracy: float = field(default=float("nan"))
