"""Metrics over resampled test records: the Bayesian bootstrap (Rubin, 1981), the same weights for every cell.

With weight w_i ~ Exponential(1) of record i, sums over records become weighted sums; bins and groups stay those of the
data. No weight is 0, so that a small set never loses a class. Every metric here is made of weighted sums, so one matrix
product gives all resamplings of a cell at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from safeecgmatch.metrics import BINS, probabilities_of

Array = npt.NDArray[np.float64]

RESAMPLINGS = 1000


class Resampler:
    """Weights (B, N) of the records of one dataset, drawn once for all of its cells."""

    def __init__(self, name: str, records: npt.NDArray, resamplings: int = RESAMPLINGS) -> None:
        self.records = np.unique(records)
        generator = np.random.default_rng(list(f"bootstrap {name}".encode()))
        self._weights = generator.standard_exponential((resamplings, self.records.size))

    def weights(self, records: npt.NDArray) -> Array:
        return self._weights[:, np.searchsorted(self.records, records)]


def members(group: npt.NDArray[np.int64], groups: int) -> Array:
    """(N, groups) indicators; a record of group -1 is in none."""
    return (group[:, None] == np.arange(groups)).astype(np.float64)


def bin_of(confidence: Array) -> npt.NDArray[np.int64]:
    """The equal bin (lower, upper] of `metrics.reliability`."""
    return np.searchsorted(np.linspace(0.0, 1.0, BINS + 1), confidence, side="left") - 1


def group_of(values: Array) -> npt.NDArray[np.int64]:
    """The group of near equal size of `metrics.ace`."""
    group = np.empty(values.size, dtype=np.int64)
    for index, chosen in enumerate(np.array_split(np.argsort(values, kind="stable"), BINS)):
        group[chosen] = index
    return group


def closed_set_draws(log_probabilities: npt.ArrayLike, labels: npt.NDArray, weights: Array) -> dict[str, Array]:
    """ACC, ECE, ACE and SCE, each (B); with all weights 1 they are those of `metrics`."""
    values = probabilities_of(log_probabilities).astype(np.float64)
    total = weights.sum(axis=1)
    confidence, correct = values.max(axis=1), (values.argmax(axis=1) == labels).astype(np.float64)

    def gap(group: npt.NDArray[np.int64], probability: Array, hit: Array) -> Array:
        return np.abs(weights @ (members(group, BINS) * (probability - hit)[:, None]))

    ece = gap(bin_of(confidence), confidence, correct).sum(axis=1) / total
    sce, ace = [], []
    for k in range(values.shape[1]):
        hit = (labels == k).astype(np.float64)
        sce.append(gap(bin_of(values[:, k]), values[:, k], hit).sum(axis=1) / total)
        group = group_of(values[:, k])
        filled = group.max() + 1  # fewer than BINS where there are fewer records
        sizes = weights @ members(group, filled)
        ace.append((gap(group, values[:, k], hit)[:, :filled] / sizes).mean(axis=1))
    accuracy = weights @ correct / total
    return {"acc": accuracy, "ece": ece, "ace": np.mean(ace, axis=0), "sce": np.mean(sce, axis=0)}


def auroc_draws(scores: npt.ArrayLike, unseen: npt.NDArray[np.bool_], weights: Array) -> Array:
    """P(an unseen record scores higher than a seen one), ties one half, for each row of the weights."""
    values = np.asarray(scores, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order], prepend=-np.inf) > 0)
    level = np.add.reduceat
    seen = level(weights[:, order] * ~unseen[order], starts, axis=1)
    found = level(weights[:, order] * unseen[order], starts, axis=1)
    lower = np.cumsum(seen, axis=1) - seen / 2
    return np.sum(found * lower, axis=1) / (seen.sum(axis=1) * found.sum(axis=1))
