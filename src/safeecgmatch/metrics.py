"""How good and how honest predictions are: pure functions on numpy arrays, one definition each.

`probabilities` are (N, K) and enter as float32; comparisons and means are made in float64. `labels` are 0..K-1.
Nothing but numpy is imported, because every training cell imports this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

Labels = npt.NDArray[np.int64]

Metrics = dict[str, Callable[[npt.ArrayLike, npt.ArrayLike], float]]

BINS = 15

FLOAT32_LOG_OF_ZERO = -103.27893  # log of the smallest positive float32: what an underflowed probability means

REFUSED = (0, 10, 20, 30, 40, 50)  # per cent of the open test set


def accuracy(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Top-1 accuracy."""
    return float(np.mean(np.argmax(probabilities, axis=1) == np.asarray(labels)))


def balanced_accuracy(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Mean recall over the classes that occur in the labels."""
    predicted, true = np.argmax(probabilities, axis=1), np.asarray(labels)
    return float(np.mean([np.mean(predicted[true == k] == k) for k in np.unique(true)]))


def macro_f1(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Mean F1 = 2 TP / (2 TP + FP + FN) over the classes that occur in labels or predictions."""
    predicted, true = np.argmax(probabilities, axis=1), np.asarray(labels)
    scores = []
    for k in np.union1d(predicted, true):
        hits = np.sum((predicted == k) & (true == k))
        scores.append(2 * hits / (np.sum(predicted == k) + np.sum(true == k)))
    return float(np.mean(scores))


def reliability(
    confidence: npt.ArrayLike, correct: npt.ArrayLike, bins: int = BINS
) -> tuple[npt.NDArray[np.int64], Array, Array]:
    """Count, mean confidence and mean correctness of the equal bins (lower, upper] on [0, 1]; NaN where empty.

    A confidence of exactly 1 belongs to the last bin, one of exactly 0 to none.
    """
    values = np.asarray(confidence, dtype=np.float64)
    bin_of = np.searchsorted(np.linspace(0.0, 1.0, bins + 1), values, side="left") - 1
    inside = bin_of >= 0
    count = np.bincount(bin_of[inside], minlength=bins)
    with np.errstate(invalid="ignore"):
        mean_confidence = np.bincount(bin_of[inside], weights=values[inside], minlength=bins) / count
        hits = np.asarray(correct, dtype=np.float64)[inside]
        mean_correct = np.bincount(bin_of[inside], weights=hits, minlength=bins) / count
    return count, mean_confidence, mean_correct


def _binned_gap(confidence: npt.ArrayLike, correct: npt.ArrayLike, bins: int) -> float:
    count, mean_confidence, mean_correct = reliability(confidence, correct, bins)
    filled = count > 0
    gaps = np.abs(mean_confidence[filled] - mean_correct[filled])
    return float(np.sum(count[filled] * gaps) / np.size(confidence))


def ece(probabilities: npt.ArrayLike, labels: npt.ArrayLike, bins: int = BINS) -> float:
    """Expected calibration error: sum_b (n_b / N) |mean confidence - accuracy| on the maximal probability."""
    values = np.asarray(probabilities)
    return _binned_gap(values.max(axis=1), values.argmax(axis=1) == np.asarray(labels), bins)


def ece_floor(probabilities: npt.ArrayLike, bins: int = BINS) -> float:
    """What ECE would be expected to show if these confidences were exactly right: the noise of N records in its bins.

    sum_b (n_b / N) E|X_b|, X_b normal with mean 0 and variance sum_i c_i (1 - c_i) / n_b^2.
    """
    confidence = np.asarray(probabilities, dtype=np.float64).max(axis=1)
    bin_of = np.searchsorted(np.linspace(0.0, 1.0, bins + 1), confidence, side="left") - 1
    variance = np.bincount(bin_of, weights=confidence * (1 - confidence), minlength=bins)
    return float(np.sum(np.sqrt(2 / np.pi * variance)) / confidence.size)


def ece_debiased(probabilities: npt.ArrayLike, labels: npt.ArrayLike, bins: int = BINS) -> float:
    """ECE less its bias from the noise of each bin's accuracy (Kumar et al., 2019, for L1); may be negative.

    2 ECE - sum_b (n_b / N) E|X_b|, X_b normal with the bin's gap as mean and variance accuracy (1 - accuracy) / n_b.
    """
    values = np.asarray(probabilities)
    correct = values.argmax(axis=1) == np.asarray(labels)
    count, mean_confidence, mean_correct = reliability(values.max(axis=1), correct, bins)
    expected = 0.0
    for n, gap, hit in zip(count, mean_confidence - mean_correct, mean_correct, strict=True):
        if n:
            expected += n * folded_normal_mean(abs(gap), math.sqrt(hit * (1 - hit) / n))
    return float(2 * ece(values, labels, bins) - expected / len(values))


def folded_normal_mean(mean: float, std: float) -> float:
    """E|X| of a normal X."""
    if std == 0:
        return abs(mean)
    ratio = mean / std
    return std * math.sqrt(2 / math.pi) * math.exp(-(ratio**2) / 2) + mean * math.erf(ratio / math.sqrt(2))


def sce(probabilities: npt.ArrayLike, labels: npt.ArrayLike, bins: int = BINS) -> float:
    """Static calibration error: ECE of each class's own probability against 1[y = k], averaged over the classes."""
    values, true = np.asarray(probabilities), np.asarray(labels)
    return float(np.mean([_binned_gap(values[:, k], true == k, bins) for k in range(values.shape[1])]))


def ace(probabilities: npt.ArrayLike, labels: npt.ArrayLike, groups: int = BINS) -> float:
    """Adaptive calibration error: per class, records sorted by p_k (stable) in groups of near equal size;
    the unweighted mean over all non-empty class-groups of |mean p_k - mean 1[y = k]|.
    """
    values, true = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    gaps = []
    for k in range(values.shape[1]):
        order = np.argsort(values[:, k], kind="stable")
        for group in np.array_split(order, groups):
            if group.size:
                gaps.append(abs(values[group, k].mean() - np.mean(true[group] == k)))
    return float(np.mean(gaps))


def nll(log_probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Mean negative log-likelihood, from log-probabilities so that saturated ones stay finite."""
    values, true = np.asarray(log_probabilities, dtype=np.float64), np.asarray(labels)
    return float(-np.mean(values[np.arange(true.size), true]))


def brier(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Multi-class Brier score: mean over the records of sum_k (p_k - 1[y = k])^2, between 0 and 2."""
    values = np.asarray(probabilities, dtype=np.float64)
    target = np.asarray(labels)[:, None] == np.arange(values.shape[1])
    return float(np.mean(np.sum((values - target) ** 2, axis=1)))


def auroc(scores: npt.ArrayLike, unseen: npt.ArrayLike) -> float:
    """Probability that an unseen record scores higher than a seen one, ties counting one half."""
    values, positive = np.asarray(scores, dtype=np.float64), np.asarray(unseen, dtype=bool)
    _, level, count = np.unique(values, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[level]
    positives, negatives = int(positive.sum()), int((~positive).sum())
    return float((rank[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def fpr95(scores: npt.ArrayLike, unseen: npt.ArrayLike) -> float:
    """Share of seen records flagged at the highest threshold that flags at least 95 % of the unseen ones."""
    values, positive = np.asarray(scores, dtype=np.float64), np.asarray(unseen, dtype=bool)
    descending = np.sort(values[positive])[::-1]
    threshold = descending[-(-95 * descending.size // 100) - 1]
    return float(np.mean(values[~positive] >= threshold))


def acceptance_threshold(seen_scores: npt.ArrayLike, share: float) -> float:
    """The lowest unseen-class score that still accepts at least `share` of these seen records; `<=` it is accepted."""
    ascending = np.sort(np.asarray(seen_scores, dtype=np.float64))
    wanted = int(np.ceil(round(share * ascending.size, 6)))  # 0.95 * 20 is 19, not 19.000000000000004
    return float(ascending[max(wanted, 1) - 1])


def risk_coverage(correct: npt.ArrayLike, confidence: npt.ArrayLike) -> tuple[Array, Array]:
    """Coverage k / N and risk, the share of errors among the k most confident records, for k = 1..N.

    Records of equal confidence count with their mean, as if their order were drawn, so the given order does not matter.
    """
    wrong, certain = ~np.asarray(correct, dtype=bool), np.asarray(confidence, dtype=np.float64)
    _, level, count = np.unique(-certain, return_inverse=True, return_counts=True)
    errors = (np.bincount(level, weights=wrong) / count)[np.sort(level)]
    accepted = np.arange(1, certain.size + 1)
    return accepted / certain.size, np.cumsum(errors) / accepted


def area_under_risk_coverage(correct: npt.ArrayLike, confidence: npt.ArrayLike) -> float:
    """Mean risk over all coverages (Geifman et al., ICLR 2019): 0 where every record is right."""
    return float(np.mean(risk_coverage(correct, confidence)[1]))


def accuracy_after_refusal(correct: npt.ArrayLike, confidence: npt.ArrayLike, refused: float) -> float:
    """Accuracy on the rest when the least certain `refused` of the records (a share below 1) are not answered."""
    risk = risk_coverage(correct, confidence)[1]
    return float(1 - risk[risk.size - 1 - int(round(refused * risk.size, 6))])


def probabilities_of(log_probabilities: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """The float32 probabilities that enter the metrics; rounding may not push one above 1."""
    values = np.exp(np.asarray(log_probabilities, dtype=np.float64)).astype(np.float32)
    return np.minimum(values, np.float32(1.0))


# What metrics.csv holds of every prediction, in its order; names.yaml says how each is printed.
CLOSED_SET: Metrics = {  # of probabilities and labels on test
    "acc": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "macro_f1": macro_f1,
    "ece": ece,
    "ace": ace,
    "sce": sce,
    "nll": nll,
    "brier": brier,
}
OF_LOGARITHMS = ("nll",)  # of log-probabilities instead
OPEN_SET: Metrics = {"auroc": auroc, "fpr95": fpr95}  # of unseen-class scores, and which records are unseen
REFUSAL: Metrics = {  # of which answers on the open test set are right, and how certain they are
    "aurc": area_under_risk_coverage,
    **{f"acc_refusing_{share}": partial(accuracy_after_refusal, refused=share / 100) for share in REFUSED},
}
METRICS = (*CLOSED_SET, *OPEN_SET, *REFUSAL)


def closed_set_metrics(log_probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> dict[str, float]:
    finite = np.maximum(np.asarray(log_probabilities, dtype=np.float64), FLOAT32_LOG_OF_ZERO)
    values, true = probabilities_of(log_probabilities), np.asarray(labels)
    return {name: metric(finite if name in OF_LOGARITHMS else values, true) for name, metric in CLOSED_SET.items()}


def open_set_metrics(scores: npt.ArrayLike, unseen: npt.ArrayLike) -> dict[str, float]:
    """Nothing where the open test set lacks seen or unseen records."""
    positive = np.asarray(unseen, dtype=bool)
    if positive.all() or not positive.any():
        return {}
    return {name: metric(scores, positive) for name, metric in OPEN_SET.items()}


def refusal_metrics(correct: npt.ArrayLike, scores: npt.ArrayLike) -> dict[str, float]:
    """What refusing the records of the highest unseen-class scores buys: AURC, and accuracy on those answered."""
    certain = -np.asarray(scores, dtype=np.float64)
    return {name: metric(correct, certain) for name, metric in REFUSAL.items()}


def scaled_log_probabilities(log_probabilities: npt.ArrayLike, temperature: float) -> Array:
    """log softmax(log p / T); T = 1 leaves the stored values untouched."""
    values = np.asarray(log_probabilities, dtype=np.float64)
    if temperature == 1.0:
        return values
    scaled = np.maximum(values, FLOAT32_LOG_OF_ZERO) / temperature
    scaled -= scaled.max(axis=1, keepdims=True)
    return scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
