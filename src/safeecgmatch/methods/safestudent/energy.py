"""SafeStudent's score."""

from __future__ import annotations

from torch import Tensor

ENERGY_EPS = 1e-5


def energy_discrepancy(logits: Tensor, temperature: float) -> Tensor:
    """SafeStudent: ED = T ln sum_k e^(z_k/T) - T ln(sum_k e^(z_k/T) - max_k e^(z_k/T) + 1e-5), one value per row.

    At T = 1 this is -ln(1 - max softmax) but for the 1e-5, so never below ln(K / (K - 1)).
    """
    energies = (logits / temperature).exp()
    total, largest = energies.sum(dim=1), energies.amax(dim=1)
    return temperature * (total.log() - (total - largest + ENERGY_EPS).log())
