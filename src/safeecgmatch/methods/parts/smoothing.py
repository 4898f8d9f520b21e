"""Adaptive label smoothing: how often a prediction of a given confidence is right on validation (CaliMatch).

A table has 30 bins of equal width; an empty bin is NaN. Three things in it are worth knowing, all inherited from
CaliMatch and open to a switch where the readings differ:

* the table is built over tempered and read with untempered confidences (`axis`);
* it is built with exact edges j/30 and read with edges rounded to two decimals;
* an entry is clipped into its own bin (`clip`), so a target never moves by more than the width of a bin.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from safeecgmatch.methods.parts.one_vs_all import one_vs_all_probabilities

BINS = 30
TICKS = (*(round(j / BINS, 2) for j in range(BINS)), 1.0)
OVA_FLOOR = 0.5  # of the one-vs-all targets; for the classifier it is 1 / K

# Which confidences are tempered: those that build the table ("mixed", as published), both, or none.
Axis = Literal["mixed", "tempered", "untempered"]


def empty_table() -> Tensor:
    return torch.full((BINS,), torch.nan, dtype=torch.float64)


def smoothing_table(confidence: Tensor, correct: Tensor) -> Tensor:
    """Mean correctness over {j/30 < c <= (j+1)/30}, j = 0..29; NaN where the bin is empty.

    On the CPU, once per epoch: a weighted `bincount` raises on CUDA where algorithms must be deterministic.
    """
    edges = torch.arange(BINS + 1, dtype=torch.float64) / BINS
    bin_of = torch.bucketize(confidence.cpu().double(), edges) - 1
    inside = bin_of >= 0
    count = torch.bincount(bin_of[inside], minlength=BINS)
    hits = torch.bincount(bin_of[inside], weights=correct.cpu()[inside].double(), minlength=BINS)
    return hits / count  # 0 / 0 is the NaN of an empty bin


def look_up(confidence: Tensor, table: Tensor, floor: float, clip: bool = True) -> Tensor:
    """The target of each confidence: max(its bin's entry, floor), or the confidence itself where the bin is empty.

    The bin is t_j < c <= t_{j+1}, compared in the precision of `confidence`: a float32 value on a tick would otherwise
    land above it for 18 of the 29 inner ticks.
    """
    confidence = confidence.detach()
    ticks = torch.tensor(TICKS, dtype=torch.float64, device=confidence.device).to(confidence.dtype)
    entries = table.to(confidence)
    if clip:
        entries = torch.minimum(torch.maximum(entries, ticks[:-1]), ticks[1:])  # NaN stays NaN
    bin_of = torch.bucketize(confidence, ticks) - 1
    found = entries[bin_of.clamp(0, BINS - 1)]
    empty = found.isnan() | (bin_of < 0)
    return torch.where(empty, confidence, found.clamp(min=floor))


def class_confidence(logits: Tensor, temperature: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
    """(confidence, class) = max and arg max over k of softmax(z / T)."""
    confidence, predicted = (logits / temperature).softmax(dim=1).max(dim=1)
    return confidence, predicted


def ova_confidence(logits: Tensor, temperature: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
    """(confidence, class) = max and arg max over k of the inlier probability of o / T."""
    confidence, predicted = one_vs_all_probabilities(logits / temperature)[1].max(dim=1)
    return confidence, predicted
