from __future__ import annotations

import numpy as np
import pytest

from safeecgmatch.methods.parts.temperature import BOUNDS, fit_temperature
from safeecgmatch.metrics import ece, nll, probabilities_of, scaled_log_probabilities


def overconfident_logits(factor: float, records: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Labels drawn from softmax(z); the logits returned are `factor` times z, so T = factor is right."""
    generator = np.random.default_rng(3)
    logits = generator.normal(0, 1.5, (records, 3))
    noise = generator.gumbel(size=logits.shape)
    return factor * logits, (logits + noise).argmax(axis=1)


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.5])
def test_recovers_the_temperature_that_made_the_labels(factor: float) -> None:
    logits, labels = overconfident_logits(factor)
    assert fit_temperature(logits, labels) == pytest.approx(factor, rel=0.05)


def test_is_the_minimum_and_improves_calibration() -> None:
    logits, labels = overconfident_logits(3.0)
    found = fit_temperature(logits, labels)
    best = nll(scaled_log_probabilities(logits, found), labels)
    for other in np.linspace(*BOUNDS, 200):
        assert nll(scaled_log_probabilities(logits, other * (1 + 1e-9)), labels) >= best - 1e-9
    before = scaled_log_probabilities(logits, 1 + 1e-12)
    after = scaled_log_probabilities(logits, found)
    assert ece(probabilities_of(after), labels) < 0.2 * ece(probabilities_of(before), labels)


def test_stays_within_the_bounds() -> None:
    logits, labels = overconfident_logits(1.0, records=200)
    assert fit_temperature(100 * logits, labels) == pytest.approx(5.0, abs=1e-4)
    perfect = np.eye(3)[labels]
    assert fit_temperature(perfect, labels) == pytest.approx(0.2, abs=1e-4)
    assert 1.0 <= fit_temperature(logits, 1 - labels % 2, bounds=(1.0, 1.5)) <= 1.5


def test_log_probabilities_serve_as_logits() -> None:
    logits, labels = overconfident_logits(2.0, records=500)
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert fit_temperature(log_probabilities, labels) == pytest.approx(fit_temperature(logits, labels), abs=1e-5)
