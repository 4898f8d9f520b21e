"""A network that classifies, detects unseen classes and knows how far to trust itself.

All of CaliMatch is one such branch, SafeECGMatch has two: an encoder, a classifier, a one-vs-all head, a temperature
for each head (Eqs. 11-12) and a smoothing table for each head (the alpha and beta of Eqs. 13-14).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from safeecgmatch.engine.models import ResNet1D
from safeecgmatch.methods.parts.calibration import inlier_scores
from safeecgmatch.methods.parts.smoothing import (
    OVA_FLOOR,
    Axis,
    class_confidence,
    empty_table,
    look_up,
    ova_confidence,
    smoothing_table,
)
from safeecgmatch.methods.parts.temperature import BOUNDS, fit_ova_temperature, fit_temperature

# By gradient on the labelled batch (clamped to [0.2, 5] after each step or not), or fitted on validation.
Temperatures = Literal["gradient", "gradient_clamped", "validation"]


@dataclass(frozen=True)
class Calibration:
    """What a training step needs to know of a branch besides its logits."""

    t_class: Tensor
    t_ova: Tensor
    table_class: Tensor
    table_ova: Tensor


def smoothed_targets(z: Tensor, o: Tensor, now: Calibration, axis: Axis, clip: bool) -> tuple[Tensor, Tensor]:
    """alpha_i and beta_i: the validation accuracy at the confidence of each labelled record; no gradient."""
    tempered = axis == "tempered"
    c_class, _ = class_confidence(z.detach(), now.t_class.detach() if tempered else 1.0)
    c_ova, _ = ova_confidence(o.detach(), now.t_ova.detach() if tempered else 1.0)
    return look_up(c_class, now.table_class, 1.0 / z.shape[1], clip), look_up(c_ova, now.table_ova, OVA_FLOOR, clip)


class Branch(nn.Module):
    """An uncalibrated branch (ablation) keeps both temperatures at 1 and has no tables."""

    table_class: Tensor
    table_ova: Tensor

    def __init__(
        self,
        network: ResNet1D,
        ova: nn.Linear,
        initial: float,
        temperatures: Temperatures,
        axis: Axis,
        calibrated: bool,
    ) -> None:
        super().__init__()
        self.network, self.ova = network, ova
        self.temperatures, self.axis, self.calibrated = temperatures, axis, calibrated
        # A temperature without gradient is a parameter all the same: the count of parameters is that of the paper.
        learned = calibrated and temperatures != "validation"
        self.t_class, self.t_ova = (
            nn.Parameter(torch.tensor(initial if calibrated else 1.0), requires_grad=learned) for _ in range(2)
        )
        self.register_buffer("table_class", empty_table())
        self.register_buffer("table_ova", empty_table())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Class logits z (n, K) and one-vs-all logits o (n, 2K)."""
        features = self.network.features(x)
        return self.network.fc(features), self.ova(features)

    def calibration(self) -> Calibration:
        return Calibration(self.t_class, self.t_ova, self.table_class, self.table_ova)

    @torch.no_grad()
    def calibrate(self, z: Tensor, o: Tensor, labels: Tensor) -> None:
        """From the logits of the validation set: temperatures where they are fitted, then the tables."""
        if not self.calibrated:
            return
        if self.temperatures == "validation":
            self.t_class.fill_(fit_temperature(z.cpu(), labels.cpu()))
            self.t_ova.fill_(fit_ova_temperature(o.cpu(), labels.cpu()))
        tempered = self.axis != "untempered"
        c_class, k_class = class_confidence(z, self.t_class if tempered else 1.0)
        c_ova, k_ova = ova_confidence(o, self.t_ova if tempered else 1.0)
        self.table_class.copy_(smoothing_table(c_class, k_class == labels))
        self.table_ova.copy_(smoothing_table(c_ova, k_ova == labels))

    def copy_tables(self, other: Branch) -> None:
        self.table_class.copy_(other.table_class)
        self.table_ova.copy_(other.table_ova)

    def clamp_temperatures(self) -> None:
        if self.temperatures == "gradient_clamped":
            self.t_class.clamp_(*BOUNDS)
            self.t_ova.clamp_(*BOUNDS)

    @torch.no_grad()
    def predict(self, z: Tensor, o: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities log softmax(z / T_cls), and the unseen score 1 - S of Eq. (15)."""
        _, unseen, _ = inlier_scores(z, o, self.t_class, self.t_ova)
        return (z / self.t_class).log_softmax(dim=1), unseen

    def monitors(self, name: str) -> dict[str, float]:
        return {f"temperature.class.{name}": self.t_class.item(), f"temperature.ova.{name}": self.t_ova.item()}
