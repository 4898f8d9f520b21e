"""Statistics over few seeds, as pure functions on plain numbers. scipy is imported where it is used: it takes a second.

A difference of two methods varies with the seed (labelled draw, weights, order; the split, where each seed has its own)
and with the test records, as far as the seeds share them. With D_s the difference of seed s and D_s* its values over
resampled records (the same resampling for both methods and for all seeds),

    v_seeds   = var_s(D_s) / S                                     with S - 1 degrees of freedom
    v_records = var*(mean_s D_s*) - (mean_s var*(D_s*) - var*(mean_s D_s*)) / (S - 1)

where the subtracted part is record noise of single seeds, which v_seeds holds already. The interval is

    mean_s D_s +- sqrt(t_{S-1}^2 v_seeds + z^2 v_records).

A bootstrap over three seeds covers 75 % to 85 % where it says 95 %; Student's multiplier on the seeds' part brings it
to 95 % or a little more (simulated in the tests).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

CONFIDENCE = 0.95
SMALLEST_P = 1e-12
TIE = 1e-12  # means closer than this are equal: the same numbers added in another order


class Summary(NamedTuple):
    """Mean, sample standard deviation (ddof = 1; NaN for one value) and number of the values."""

    mean: float
    std: float
    seeds: int


def summarise(values: Sequence[float]) -> Summary:
    array = np.asarray(values, dtype=np.float64)
    return Summary(float(array.mean()), float(array.std(ddof=1)) if array.size > 1 else float("nan"), array.size)


def marks(values: Sequence[float], descending: bool, words: Sequence[str] = ("best", "second")) -> list[str]:
    """A word for each value: the first for the best, the second for the next that is no tie with it, "" for the others
    and for NaN; ties share a word."""
    ranked: list[float] = []
    for value in sorted((value for value in values if not math.isnan(value)), reverse=descending):
        if not ranked or abs(value - ranked[-1]) > TIE:
            ranked.append(value)
    top = list(zip(ranked, words, strict=False))
    return [next((word for best, word in top if abs(value - best) <= TIE), "") for value in values]


def student_interval(summary: Summary, bounded: bool, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Student's interval of a mean, on the logit scale if `bounded` to [0, 1], else on the log scale of a positive one.

    se of the transformed mean by the delta method; NaN for one value, because one seed says nothing about the spread.
    """
    from scipy.special import expit, logit, stdtrit

    mean = summary.mean
    if summary.seeds < 2:
        return float("nan"), float("nan")
    if summary.std == 0 or mean <= 0 or (bounded and mean >= 1):
        return mean, mean
    half = float(stdtrit(summary.seeds - 1, (1 + confidence) / 2)) * summary.std / summary.seeds**0.5
    if bounded:
        half /= mean * (1 - mean)
        return float(expit(logit(mean) - half)), float(expit(logit(mean) + half))
    return mean * math.exp(-half / mean), mean * math.exp(half / mean)


def welch_p(first: Summary, second: Summary) -> float:
    """Two-sided p of Welch's unequal-variance t test, from summaries alone; NaN if either has one value."""
    from scipy.stats import ttest_ind_from_stats

    if first.seeds < 2 or second.seeds < 2:
        return float("nan")
    if first.std == second.std == 0:  # no spread on either side: the means are equal or they are not
        return 1.0 if math.isclose(first.mean, second.mean, rel_tol=0, abs_tol=TIE) else 0.0
    return float(ttest_ind_from_stats(*first, *second, equal_var=False).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p values, in the order given; NaN entries stay NaN and are not counted as tests."""
    adjusted = [float("nan")] * len(p_values)
    tested = sorted((p, i) for i, p in enumerate(p_values) if not np.isnan(p))
    running = 0.0
    for rank, (p, index) in enumerate(tested):
        running = max(running, min(1.0, (len(tested) - rank) * p))
        adjusted[index] = running
    return adjusted


@dataclass(frozen=True)
class Difference:
    """A paired difference with the two parts of its standard error; positive is better for the first method."""

    estimate: float
    se_seeds: float
    se_records: float
    seeds: int

    @property
    def turned(self) -> Difference:
        """That of the second method to the first."""
        return replace(self, estimate=-self.estimate)

    def half_width(self, quantile: float, se_seeds: float | npt.NDArray | None = None) -> npt.NDArray:
        """sqrt(t^2 v_seeds + z^2 v_records) at a quantile between 1/2 and 1."""
        from scipy.special import ndtri, stdtrit

        seeds = self.se_seeds if se_seeds is None else se_seeds
        return np.hypot(stdtrit(self.seeds - 1, quantile) * seeds, ndtri(quantile) * self.se_records)

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        half = float(self.half_width((1 + confidence) / 2))
        return max(self.estimate - half, -1.0), min(self.estimate + half, 1.0)

    def p_above(self, value: float) -> float:
        """One-sided p against "the true difference is at most `value`": the level at which an interval excludes it."""
        from scipy.optimize import brentq

        gap = self.estimate - value
        if self.se_seeds == self.se_records == 0:
            return 0.0 if gap > TIE else 1.0
        if gap <= 0:
            return 0.5 if gap == 0 else 1 - self.turned.p_above(-value)
        if self.half_width(1 - SMALLEST_P) < gap:
            return SMALLEST_P
        return float(brentq(lambda p: self.half_width(1 - p) - gap, SMALLEST_P, 0.5))

    def p_below(self, value: float) -> float:
        """One-sided p against "the true difference is at least `value`"."""
        return self.turned.p_above(-value)

    def power(self, gain: float, level: float = 1 - CONFIDENCE) -> float:
        """Probability that a true `gain` > 0 would give an interval above 0, if the spread is what was seen."""
        from scipy.special import ndtr

        total, half = self._widths(1 - level / 2)
        return float(np.mean(ndtr((gain - half) / total))) if total else 1.0

    def power_of_equivalence(self, margin: float, level: float = 1 - CONFIDENCE) -> float:
        """Probability that no true difference would be found equivalent within the margin."""
        from scipy.special import ndtr

        total, half = self._widths(1 - level)
        return float(np.mean(np.maximum(2 * ndtr((margin - half) / total) - 1, 0))) if total else 1.0

    def _widths(self, quantile: float) -> tuple[float, npt.NDArray]:
        """The true spread, and half widths over quantiles of the seeds' variance, which is estimated too."""
        seen = self.se_seeds * np.sqrt(_chi_square_quantiles(self.seeds - 1) / (self.seeds - 1))
        return math.hypot(self.se_seeds, self.se_records), self.half_width(quantile, seen)


@cache
def _chi_square_quantiles(freedom: int) -> Array:
    """500 equally likely values."""
    from scipy.special import chdtri

    return np.asarray(chdtri(freedom, (np.arange(500) + 0.5) / 500), dtype=np.float64)


def paired_difference(
    first: npt.ArrayLike, second: npt.ArrayLike, first_draws: npt.ArrayLike, second_draws: npt.ArrayLike
) -> Difference:
    """Of values per seed (S) and their values over resampled records (S, B); at least two seeds.

    The spread of the seeds holds what the records give to each seed for itself, so the records' part is what they
    share. Where the seeds happen to differ less than that, all that the records give counts: no interval is narrower
    than theirs.
    """
    values = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    draws = np.asarray(first_draws, dtype=np.float64) - np.asarray(second_draws, dtype=np.float64)
    seeds = values.size
    together = float(draws.mean(axis=0).var(ddof=1))
    single = float(draws.var(axis=1, ddof=1).mean())
    shared = max(0.0, together - (single - together) / (seeds - 1))
    of_seeds = float(values.var(ddof=1)) / seeds
    of_records = shared if of_seeds >= together - shared else together
    return Difference(float(values.mean()), of_seeds**0.5, of_records**0.5, seeds)


def relation(difference: Difference, margin: float, level: float = 1 - CONFIDENCE) -> str:
    """better, worse: the interval excludes 0; equivalent: two one-sided tests within the margin; else inconclusive."""
    low, high = difference.interval(1 - level)
    if low > 0 or high < 0:
        return "better" if low > 0 else "worse"
    inside = difference.p_above(-margin) <= level and difference.p_below(margin) <= level
    return "equivalent" if inside else "inconclusive"


def probability_of_improvement(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Share of all pairs of runs in which the first is higher, ties counting one half (Mann-Whitney's U / nm)."""
    gaps = np.subtract.outer(np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64))
    return float(np.mean((gaps > 0) + 0.5 * (gaps == 0)))
