"""Temperatures fitted on held-out records."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from safeecgmatch.engine.contract import TEMPERATURE_BOUNDS

BOUNDS = TEMPERATURE_BOUNDS
TOLERANCE = 1e-6


def fit_temperature(logits: npt.ArrayLike, labels: npt.ArrayLike, bounds: tuple[float, float] = BOUNDS) -> float:
    """The T in `bounds` that minimises the mean negative log-likelihood of softmax(z / T) (Guo et al., 2017).

    The likelihood is convex in 1/T, so the bounded scalar search finds the minimum; log-probabilities serve as logits.
    """
    from scipy.optimize import minimize_scalar  # half a second to import, needed by few cells

    values, true = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    gaps = values - values.max(axis=1, keepdims=True)  # subtracting a constant leaves softmax(z / T) unchanged
    of_label = gaps[np.arange(true.size), true]

    def mean_nll(temperature: float) -> float:
        return float(np.mean(np.log(np.exp(gaps / temperature).sum(axis=1)) - of_label / temperature))

    found = minimize_scalar(mean_nll, bounds=bounds, method="bounded", options={"xatol": TOLERANCE})
    return float(found.x)


def fit_ova_temperature(logits: npt.ArrayLike, labels: npt.ArrayLike, bounds: tuple[float, float] = BOUNDS) -> float:
    """The T in `bounds` that minimises mean_i [-ln q_y - mean_{k != y} ln(1 - q_k)], q of the pairs o / T.

    With d_k the inlier minus the outlier logit, q_k = sigmoid(d_k / T); the loss is convex in 1/T.
    """
    from scipy.optimize import minimize_scalar  # half a second to import, needed by few cells

    outlier, inlier = np.split(np.asarray(logits, dtype=np.float64), 2, axis=1)
    true = np.asarray(labels)[:, None] == np.arange(outlier.shape[1])
    wrong_way = np.where(true, outlier - inlier, inlier - outlier)  # the loss of a pair is ln(1 + exp(wrong_way / T))
    share = np.where(true, 1.0, 1.0 / (outlier.shape[1] - 1)) / len(true)

    def mean_nll(temperature: float) -> float:
        return float(np.sum(share * np.logaddexp(0.0, wrong_way / temperature)))

    found = minimize_scalar(mean_nll, bounds=bounds, method="bounded", options={"xatol": TOLERANCE})
    return float(found.x)
