"""Metrics over resampled test records: the Bayesian bootstrap (Rubin, 1981). A record has the same weights everywhere.

With weight w_i ~ Exponential(1) of record i, sums over records become weighted sums; bins and groups stay those of the
data. No weight is 0, so that a small set never loses a class. Every metric here is made of weighted sums, so one matrix
product gives all resamplings of a cell at once.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from safeecgmatch.metrics import BINS, probabilities_of

Array = npt.NDArray[np.float64]

RESAMPLINGS = 200  # each is stored with a cell's numbers, so that cells of several machines can be compared


@cache
def _weights_of(record: str) -> Array:
    return np.random.default_rng(list(f"bootstrap {record}".encode())).standard_exponential(RESAMPLINGS)


def weights(records: npt.NDArray) -> Array:
    """(N, B) of the named records; those of a record depend on nothing but its name."""
    return np.stack([_weights_of(record) for record in records.tolist()])


def members(group: npt.NDArray[np.int64]) -> Array:
    """(N, BINS) indicators; a record of group -1 is in none."""
    return (group[:, None] == np.arange(BINS)).astype(np.float64)


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
    """ACC, ECE, ACE and SCE, each (B); with all weights equal they are those of `metrics`."""
    values = probabilities_of(log_probabilities).astype(np.float64)
    classes = range(values.shape[1])
    confidence, correct = values.max(axis=1), (values.argmax(axis=1) == labels).astype(np.float64)
    gaps = [values[:, k] - (labels == k) for k in classes]
    groups = [members(group_of(values[:, k])) for k in classes]
    summed = [
        correct[:, None],
        members(bin_of(confidence)) * (confidence - correct)[:, None],
        *(members(bin_of(values[:, k])) * gaps[k][:, None] for k in classes),
        *(groups[k] * gaps[k][:, None] for k in classes),
        *groups,
    ]
    sums = np.concatenate(summed, axis=1).T @ weights
    accuracy, rest = sums[0], sums[1:].reshape(-1, BINS, weights.shape[1])
    count = len(classes)
    ece, sce, ace_gaps, sizes = rest[0], rest[1 : 1 + count], rest[1 + count : 1 + 2 * count], rest[1 + 2 * count :]
    total = weights.sum(axis=0)
    filled = min(len(values), BINS)  # there are fewer groups where there are fewer records
    ace = np.abs(ace_gaps[:, :filled]) / sizes[:, :filled]
    return {
        "acc": accuracy / total,
        "ece": np.abs(ece).sum(axis=0) / total,
        "ace": ace.mean(axis=(0, 1)),
        "sce": np.abs(sce).sum(axis=1).mean(axis=0) / total,
    }


def auroc_draws(scores: npt.ArrayLike, unseen: npt.NDArray[np.bool_], weights: Array) -> Array:
    """P(an unseen record scores higher than a seen one), ties one half, for each column of the weights."""
    values = np.asarray(scores, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order], prepend=-np.inf) > 0)
    positive = unseen[order][:, None]
    seen, found = (np.add.reduceat(weights[order] * side, starts) for side in (~positive, positive))
    lower = np.cumsum(seen, axis=0) - seen / 2
    return np.sum(found * lower, axis=0) / (seen.sum(axis=0) * found.sum(axis=0))
