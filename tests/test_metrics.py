from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safeecgmatch import metrics
from safeecgmatch import predictions as stored
from safeecgmatch.reporting.names import bounds, is_ranked, metric_name
from tests.vectors import load_vector


def random_case(seed: int, records: int = 97, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 2, (records, classes))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return probabilities.astype(np.float32), generator.integers(0, classes, records)


def ece_one_by_one(probabilities: np.ndarray, labels: np.ndarray, bins: int = 15) -> float:
    """An oracle that shares nothing with the implementation: walks over bins and records in plain Python."""
    total = 0.0
    for b in range(bins):
        members = []
        for row, label in zip(probabilities.tolist(), labels.tolist(), strict=True):
            confidence = max(row)
            if b / bins < confidence <= (b + 1) / bins:
                members.append((confidence, row.index(confidence) == label))
        if members:
            gap = sum(c for c, _ in members) / len(members) - sum(h for _, h in members) / len(members)
            total += len(members) / len(labels) * abs(gap)
    return total


@pytest.fixture(scope="module")
def golden() -> tuple[np.ndarray, np.ndarray, dict]:
    i, j = np.arange(200)[:, None], np.arange(3)
    logits = 3 * np.sin(0.37 * i + 2.1 * j) + np.cos(0.11 * i * (j + 1))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (7 * np.arange(200) + np.arange(200) // 5) % 3
    return probabilities.astype(np.float32), labels, load_vector("safe_family_golden")["metrics_on_P"]


def test_golden_metrics(golden) -> None:
    probabilities, labels, expected = golden
    assert metrics.accuracy(probabilities, labels) == expected["acc"]
    assert metrics.ece(probabilities, labels) == pytest.approx(expected["ECE15"], abs=1e-7)
    assert metrics.ace(probabilities, labels) == pytest.approx(expected["ACE15"], abs=1e-7)
    assert metrics.sce(probabilities, labels) == pytest.approx(expected["SCE15"], abs=1e-7)


def test_perfect_calibration_gives_zero() -> None:
    labels = np.array([0, 1, 2] * 20)
    certain = np.eye(3, dtype=np.float32)[labels]
    for metric in (metrics.ece, metrics.sce, metrics.ace, metrics.brier):
        assert metric(certain, labels) == 0.0
    # Three of four records right at confidence 3/4, and each class as often right as its probability says.
    labels = np.array([0, 0, 0, 1] * 15)
    honest = np.tile(np.float32([0.75, 0.25]), (60, 1))
    assert metrics.ece(honest, labels) == 0.0
    assert metrics.sce(honest, labels) == 0.0
    assert metrics.ace(honest, labels) == 0.0


def test_confidence_of_one_falls_into_the_last_bin_and_zero_into_none() -> None:
    count, confidence, correct = metrics.reliability([1.0, 1.0, 0.0], [True, False, True])
    assert count.tolist() == [0] * 14 + [2]
    assert confidence[-1] == 1.0 and correct[-1] == 0.5
    certain_and_wrong = np.float32([[1.0, 0.0], [1.0, 0.0]])
    assert metrics.ece(certain_and_wrong, np.array([1, 1])) == 1.0


def test_bins_are_closed_above() -> None:
    count, _, _ = metrics.reliability([0.2, np.nextafter(0.2, 1)], [1, 1], bins=5)
    assert count.tolist() == [1, 1, 0, 0, 0]


@pytest.mark.parametrize("seed", range(20))
def test_ece_equals_the_oracle(seed: int) -> None:
    probabilities, labels = random_case(seed, records=150 + seed)
    assert metrics.ece(probabilities, labels) == pytest.approx(ece_one_by_one(probabilities, labels), abs=1e-12)


def test_ace_groups_by_hand() -> None:
    probabilities = np.float32([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
    labels = np.array([0, 1, 1])
    # Two groups per class: the first gets the extra record.
    class_0 = abs((0.2 + 0.6) / 2 - 0.0) + abs(0.9 - 1.0)
    class_1 = abs((0.1 + 0.4) / 2 - 0.5) + abs(0.8 - 1.0)
    assert metrics.ace(probabilities, labels, groups=2) == pytest.approx((class_0 + class_1) / 4, abs=1e-7)
    # Fewer records than groups: the empty groups do not count.
    assert metrics.ace(probabilities, labels) == pytest.approx((0.1 + 0.6 + 0.2) * 2 / 6, abs=1e-7)


@given(st.integers(0, 10_000), st.integers(1, 80), st.integers(2, 5))
@settings(max_examples=60, deadline=None)
def test_bounds_and_permutation_invariance(seed: int, records: int, classes: int) -> None:
    probabilities, labels = random_case(seed, records, classes)
    log_probabilities = np.log(probabilities)
    before = metrics.closed_set_metrics(log_probabilities, labels)
    order = np.random.default_rng(seed).permutation(records)
    after = metrics.closed_set_metrics(log_probabilities[order], labels[order])
    assert after == pytest.approx(before, abs=1e-12)
    assert set(before) == set(metrics.CLOSED_SET)
    for name, value in before.items():
        low, high = bounds(name)
        assert low <= value <= high, name
    relabelled = np.random.default_rng(seed + 1).permutation(classes)
    swapped = metrics.closed_set_metrics(log_probabilities[:, np.argsort(relabelled)], relabelled[labels])
    assert swapped == pytest.approx(before, abs=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_scores_equal_scikit_learn(seed: int) -> None:
    from sklearn.metrics import balanced_accuracy_score, f1_score, log_loss, roc_auc_score, roc_curve

    probabilities, labels = random_case(seed)
    predicted = probabilities.argmax(axis=1)
    assert metrics.balanced_accuracy(probabilities, labels) == pytest.approx(balanced_accuracy_score(labels, predicted))
    assert metrics.macro_f1(probabilities, labels) == pytest.approx(f1_score(labels, predicted, average="macro"))
    exact = probabilities.astype(float) / probabilities.astype(float).sum(axis=1, keepdims=True)
    assert metrics.nll(np.log(exact), labels) == pytest.approx(log_loss(labels, exact), abs=1e-9)

    generator = np.random.default_rng(seed)
    unseen = generator.random(200) < 0.4
    scores = np.round(generator.normal(unseen.astype(float), 1.0), 1)  # rounding makes ties
    assert metrics.auroc(scores, unseen) == pytest.approx(roc_auc_score(unseen, scores))
    false_positive, true_positive, _ = roc_curve(unseen, scores, drop_intermediate=False)
    assert metrics.fpr95(scores, unseen) == pytest.approx(false_positive[true_positive >= 0.95].min())


def test_open_set_metrics_of_a_perfect_and_a_useless_score() -> None:
    unseen = np.array([True] * 20 + [False] * 30)
    assert metrics.open_set_metrics(unseen.astype(float), unseen) == {"auroc": 1.0, "fpr95": 0.0}
    assert metrics.open_set_metrics(np.zeros(50), unseen) == {"auroc": 0.5, "fpr95": 1.0}
    assert metrics.open_set_metrics(np.zeros(30), np.zeros(30, bool)) == {}


def made_up_predictions(own_score: bool) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(5)
    predictions: dict[str, np.ndarray] = {"branch": np.array("fused")}
    for split, records, classes in (("test", 60, 3), ("open_test", 80, 4)):
        predictions[f"{split}.label"] = generator.integers(0, classes, records)
        for branch in ("time", "fused"):
            logits = generator.normal(0, 2, (records, 3))
            predictions[f"{split}.log_probs.{branch}"] = (
                logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
            ).astype(np.float32)
            if own_score:
                predictions[f"{split}.ood_score.{branch}"] = generator.random(records)
    return predictions


def test_final_metrics_are_those_of_the_reported_branch() -> None:
    predictions = made_up_predictions(own_score=False)
    result = stored.final_metrics(predictions)
    assert tuple(result) == metrics.METRICS
    assert all(metric_name(name) and is_ranked(name) for name in result)
    assert result == stored.final_metrics(predictions, "fused") != stored.final_metrics(predictions, "time")
    probabilities = np.exp(predictions["test.log_probs.fused"])
    assert result["ece"] == pytest.approx(ece_one_by_one(probabilities, predictions["test.label"]), abs=1e-6)
    unseen = predictions["open_test.label"] == 3
    score = 1 - np.exp(predictions["open_test.log_probs.fused"]).max(axis=1)
    assert result["auroc"] == pytest.approx(metrics.auroc(score, unseen), abs=1e-3)


def test_own_unseen_score_is_preferred_and_not_rescaled() -> None:
    predictions = made_up_predictions(own_score=True)
    unseen = predictions["open_test.label"] == 3
    expected = metrics.auroc(predictions["open_test.ood_score.fused"], unseen)
    assert stored.final_metrics(predictions)["auroc"] == expected
    assert stored.final_metrics(predictions, temperature=2.0)["auroc"] == expected


def test_temperature_rescales_but_keeps_the_prediction() -> None:
    predictions = made_up_predictions(own_score=False)
    plain, cooled = (
        stored.final_metrics(predictions),
        stored.final_metrics(predictions, temperature=3.0),
    )
    assert plain["acc"] == cooled["acc"] and plain["nll"] != cooled["nll"]
    scaled = metrics.scaled_log_probabilities(predictions["test.log_probs.fused"], 3.0)
    assert np.exp(scaled).sum(axis=1) == pytest.approx(1.0)


def test_underflowed_probability_has_a_finite_likelihood() -> None:
    result = metrics.closed_set_metrics(np.float32([[0.0, -np.inf], [0.0, -np.inf]]), np.array([0, 1]))
    assert result["nll"] == pytest.approx(-metrics.FLOAT32_LOG_OF_ZERO / 2)
    assert result["ece"] == 0.5


@settings(deadline=None)
@given(st.lists(st.integers(0, 8), min_size=1, max_size=60), st.sampled_from([0.01, 0.5, 0.9, 0.95, 1.0]))
def test_acceptance_threshold_is_the_lowest_that_accepts_enough(values: list[int], share: float) -> None:
    scores = np.array(values) / 8
    threshold = metrics.acceptance_threshold(scores, share)
    assert threshold in scores
    assert np.mean(scores <= threshold) >= share - 1e-9
    assert np.mean(scores < threshold) < share


def test_acceptance_counts_only_seen_validation_records() -> None:
    branch = {"branch": np.array("main"), "validation.label": np.array([0, 1, 2, 2, 3])}
    log_probs = {"validation.log_probs.main": np.log(np.array([[0.5, 0.3, 0.2]] * 5, dtype=np.float32))}
    own = {"validation.ood_score.main": np.array([0.1, 0.2, 0.3, 0.4, 0.9], dtype=np.float32)}
    assert stored.acceptance(branch | log_probs | own, 0.75) == {
        "accept_share": 0.75, "accept_threshold": float(np.float32(0.3)), "unseen_score": "the method's own",
    }  # fmt: skip
    without = stored.acceptance(branch | log_probs)
    assert without == {"accept_share": 0.95, "accept_threshold": 0.5, "unseen_score": "1 - max probability"}


def test_risk_coverage_by_hand() -> None:
    coverage, risk = metrics.risk_coverage([True, False, True, True], [0.9, 0.8, 0.7, 0.6])
    assert coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert risk == pytest.approx([0, 1 / 2, 1 / 3, 1 / 4])
    assert metrics.area_under_risk_coverage([True, False, True, True], [0.9, 0.8, 0.7, 0.6]) == pytest.approx(13 / 48)
    assert metrics.accuracy_after_refusal([True, False, True, False], [0.9, 0.8, 0.7, 0.6], 0.25) == pytest.approx(
        2 / 3
    )
    assert metrics.risk_coverage([True, False], [0.5, 0.5])[1].tolist() == [0.5, 0.5]  # a tie: neither comes first


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=1, max_size=40), st.randoms())
def test_risk_coverage_knows_no_order_and_ends_at_the_error_rate(records: list[tuple[bool, int]], random) -> None:
    correct, confidence = map(np.array, zip(*records, strict=True))
    coverage, risk = metrics.risk_coverage(correct, confidence)
    assert coverage[-1] == 1 and risk[-1] == pytest.approx(1 - correct.mean())
    assert metrics.accuracy_after_refusal(correct, confidence, 0) == pytest.approx(correct.mean())
    order = random.sample(range(len(records)), len(records))
    assert metrics.risk_coverage(correct[order], confidence[order])[1] == pytest.approx(risk)
    best = metrics.area_under_risk_coverage(correct, correct)
    assert best <= metrics.area_under_risk_coverage(correct, confidence) + 1e-12
