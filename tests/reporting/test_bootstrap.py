from __future__ import annotations

import numpy as np
import pytest

from safeecgmatch import metrics
from safeecgmatch.reporting.bootstrap import RESAMPLINGS, auroc_draws, closed_set_draws, weights
from tests.reporting.synthetic import log_softmax


def predictions(rng: np.random.Generator, records: int) -> tuple[np.ndarray, np.ndarray]:
    labels = rng.integers(0, 3, records)
    logits = rng.normal(0, 1, (records, 3))
    logits[np.arange(records), labels] += 1.0
    return log_softmax(2 * logits), labels


@pytest.mark.parametrize("records", [11, 400])
def test_equal_weights_give_the_metrics_themselves(records: int) -> None:
    rng = np.random.default_rng(records)
    log_probs, labels = predictions(rng, records)
    values = metrics.probabilities_of(log_probs)
    draws = closed_set_draws(log_probs, labels, np.full((records, 2), 0.5))
    for name, metric in (("acc", metrics.accuracy), ("ece", metrics.ece), ("ace", metrics.ace), ("sce", metrics.sce)):
        assert draws[name] == pytest.approx([metric(values, labels)] * 2), name
    scores, unseen = np.round(rng.normal(size=records), 1), rng.random(records) < 0.4  # with ties
    assert auroc_draws(scores, unseen, np.ones((records, 1)))[0] == pytest.approx(metrics.auroc(scores, unseen))


def test_spread_is_that_of_new_records() -> None:
    rng = np.random.default_rng(1)
    fresh = [closed_set_draws(*predictions(rng, 300), np.ones((300, 1))) for _ in range(300)]
    names = np.array([f"r{i}" for i in range(300)])
    resampled = closed_set_draws(*predictions(rng, 300), weights(names))
    for name in ("acc", "ece"):
        assert resampled[name].std() == pytest.approx(np.std([draw[name][0] for draw in fresh]), rel=0.35), name


def test_a_record_has_the_same_weights_in_every_set() -> None:
    names = np.array(["b", "a", "c", "d"])
    drawn = weights(names)
    assert drawn.shape == (4, RESAMPLINGS) and (drawn > 0).all() and len(np.unique(drawn)) == drawn.size
    assert np.array_equal(weights(names[[2, 0]]), drawn[[2, 0]])
    many = weights(np.array([f"r{i}" for i in range(2000)]))
    assert many.mean() == pytest.approx(1, abs=0.01) and many.var() == pytest.approx(1, abs=0.02)  # Exponential(1)


@pytest.mark.parametrize("records", [83, 1331])
def test_floor_is_the_ece_of_calibrated_predictions_and_debiasing_lowers_it(records: int) -> None:
    rng = np.random.default_rng(records)
    seen, floor, debiased = [], [], []
    for _ in range(200):
        values = metrics.probabilities_of(log_softmax(rng.normal(0, 1.5, (records, 3))))
        labels = (values.cumsum(axis=1) > rng.random((records, 1))).argmax(axis=1)  # drawn from the probabilities
        seen.append(metrics.ece(values, labels))
        floor.append(metrics.ece_floor(values))
        debiased.append(metrics.ece_debiased(values, labels))
    assert np.mean(floor) == pytest.approx(np.mean(seen), rel=0.06)
    assert 0 < np.mean(debiased) < 0.75 * np.mean(seen)
