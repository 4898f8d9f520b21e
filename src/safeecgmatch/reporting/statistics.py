"""Statistics over few seeds, as pure functions on plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95


class Summary(NamedTuple):
    """Mean, sample standard deviation (ddof = 1; NaN for one value) and number of the values."""

    mean: float
    std: float
    seeds: int


def summarise(values: Sequence[float]) -> Summary:
    array = np.asarray(values, dtype=np.float64)
    return Summary(float(array.mean()), float(array.std(ddof=1)) if array.size > 1 else float("nan"), array.size)


def t_interval(summary: Summary, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """mean ± t(n - 1) std / sqrt(n); NaN for one value, because one seed says nothing about the spread."""
    from scipy.stats import t

    if summary.seeds < 2:
        return float("nan"), float("nan")
    half = float(t.ppf((1 + confidence) / 2, summary.seeds - 1)) * summary.std / summary.seeds**0.5
    return summary.mean - half, summary.mean + half


def welch_p(first: Summary, second: Summary) -> float:
    """Two-sided p of Welch's unequal-variance t test, from summaries alone; NaN if either has one value."""
    from scipy.stats import t

    if first.seeds < 2 or second.seeds < 2:
        return float("nan")
    parts = [first.std**2 / first.seeds, second.std**2 / second.seeds]
    difference = first.mean - second.mean
    if sum(parts) == 0:  # no spread on either side: the means are equal or they are not
        return 1.0 if difference == 0 else 0.0
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (first.seeds - 1) + parts[1] ** 2 / (second.seeds - 1))
    return float(2 * t.sf(abs(difference) / sum(parts) ** 0.5, freedom))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p values, in the order given; NaN entries stay NaN and are not counted as tests."""
    adjusted = [float("nan")] * len(p_values)
    tested = sorted((p, i) for i, p in enumerate(p_values) if not np.isnan(p))
    running = 0.0
    for rank, (p, index) in enumerate(tested):
        running = max(running, min(1.0, (len(tested) - rank) * p))
        adjusted[index] = running
    return adjusted


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float:
    """Kendall's tau-b between two rankings of the same items; NaN if there are fewer than two, or all are tied."""
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    upper = np.triu_indices(a.size, k=1)
    signs_a, signs_b = (np.sign(x[:, None] - x[None, :])[upper] for x in (a, b))
    scale = np.sqrt(np.sum(signs_a**2) * np.sum(signs_b**2))
    return float(np.sum(signs_a * signs_b) / scale) if scale else float("nan")
