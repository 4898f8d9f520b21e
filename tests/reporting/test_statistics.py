from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from safeecgmatch.reporting.statistics import (
    Difference,
    Summary,
    holm,
    marks,
    paired_difference,
    probability_of_improvement,
    relation,
    student_interval,
    summarise,
    welch_p,
)


def test_summary_uses_the_sample_std() -> None:
    assert summarise([1.0, 2.0, 4.0]) == pytest.approx((7 / 3, math.sqrt(7 / 3), 3))
    assert math.isnan(summarise([1.0]).std)


def test_marks_are_shared_by_ties_and_use_unrounded_means() -> None:
    means = [0.8001, 0.8002, 0.8002, math.nan, 0.7, 0.8001]
    assert marks(means, descending=True) == ["second", "best", "best", "", "", "second"]
    assert marks(means, descending=False) == ["second", "", "", "", "best", "second"]
    assert marks([0.1 + 0.2, 0.3, 0.3 - 1e-11], descending=True) == ["best", "best", "second"]
    assert marks([0.3, 0.3 + 1e-9], descending=False, words=("bold", "underline")) == ["bold", "underline"]


def test_intervals_stay_in_their_range_and_agree_with_student_for_small_spread() -> None:
    low, high = student_interval(Summary(0.8, 0.001, 3), bounded=True)
    assert high - 0.8 == pytest.approx(4.303 * 0.001 / math.sqrt(3), rel=0.02)
    assert 0.8 - low == pytest.approx(high - 0.8, rel=0.02)
    for mean in (0.02, 0.5, 0.98):
        low, high = student_interval(Summary(mean, 0.2, 3), bounded=True)
        assert 0 < low < mean < high < 1
    low, high = student_interval(Summary(1.4, 0.5, 3), bounded=False)
    assert 0 < low < 1.4 < high
    assert student_interval(Summary(1.0, 0.0, 3), bounded=True) == (1.0, 1.0)
    assert all(math.isnan(end) for end in student_interval(Summary(0.8, math.nan, 1), bounded=True))


@pytest.mark.parametrize("seed", range(3))
def test_welch_equals_scipy(seed: int) -> None:
    generator = np.random.default_rng(seed)
    a, b = generator.normal(0, 1, 3), generator.normal(0.5, 2, 4)
    expected = stats.ttest_ind(a, b, equal_var=False).pvalue
    assert welch_p(summarise(list(a)), summarise(list(b))) == pytest.approx(expected)


def test_welch_without_spread_and_with_one_seed() -> None:
    assert welch_p(Summary(0.8, 0.0, 3), Summary(0.8, 0.0, 3)) == 1.0
    assert welch_p(Summary(0.8, 0.0, 3), Summary(0.7, 0.0, 3)) == 0.0
    assert math.isnan(welch_p(Summary(0.8, math.nan, 1), Summary(0.7, 0.1, 3)))


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    adjusted = holm([0.01, math.nan, 0.03])
    assert math.isnan(adjusted[1]) and adjusted[0] == 0.02 and adjusted[2] == 0.03


def test_a_difference_without_record_noise_is_the_paired_t_test() -> None:
    first, second = np.array([0.81, 0.84, 0.80]), np.array([0.79, 0.80, 0.79])
    none = np.zeros((3, 50))
    difference = paired_difference(first, second, none, none)
    expected = stats.ttest_rel(first, second)
    assert 2 * difference.p_above(0) == pytest.approx(expected.pvalue)
    assert difference.interval() == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert difference.p_above(0) + difference.p_below(0) == pytest.approx(1)


def test_p_is_the_level_at_which_the_interval_excludes_a_value() -> None:
    difference = Difference(0.02, 0.006, 0.004, 3)
    low, high = difference.interval(0.9)
    assert difference.p_above(low) == pytest.approx(0.05) and difference.p_below(high) == pytest.approx(0.05)
    assert difference.p_above(0.02) == 0.5 and difference.p_above(0.05) > 0.9
    same = Difference(0.0, 0.0, 0.0, 3)
    assert (same.p_above(0), same.p_above(-0.01), same.p_below(0.01), same.interval()) == (1.0, 0.0, 0.0, (0.0, 0.0))


def test_relations() -> None:
    assert relation(Difference(0.05, 0.005, 0.005, 3), 0.01) == "better"
    assert relation(Difference(-0.05, 0.005, 0.005, 3), 0.01) == "worse"
    assert relation(Difference(0.001, 0.001, 0.001, 3), 0.01) == "equivalent"
    assert relation(Difference(0.01, 0.01, 0.005, 3), 0.01) == "inconclusive"


def linear_study(rng: np.random.Generator, seeds: int, gain: float, spread: tuple[float, float, float]) -> Difference:
    """A difference of record means with known parts: seeds, records shared by all seeds, and both together."""
    records, resamplings = 120, 200
    of_seed, of_record, of_both = spread
    values = gain + of_seed * rng.normal(size=(seeds, 1)) + of_record * rng.normal(size=records)
    values = values + of_both * rng.normal(size=(seeds, records))
    weights = rng.standard_exponential((resamplings, records))
    draws = values @ weights.T / weights.sum(axis=1)
    nothing = np.zeros_like(draws)
    return paired_difference(values.mean(axis=1), np.zeros(seeds), draws, nothing)


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("spread", [(0.02, 0.0, 0.0), (0.01, 0.1, 0.1), (0.0, 0.3, 0.0), (0.005, 0.0, 0.3)])
def test_intervals_cover_what_they_say(seeds: int, spread: tuple[float, float, float]) -> None:
    rng = np.random.default_rng([seeds, *(int(1000 * part) for part in spread)])
    intervals = [linear_study(rng, seeds, 0.01, spread).interval() for _ in range(600)]
    covered = np.mean([low <= 0.01 <= high for low, high in intervals])
    assert covered >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 600)  # a bootstrap over three seeds has 0.75 to 0.85


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("corpus", [150, 1200])
def test_intervals_cover_where_every_seed_has_its_own_split(seeds: int, corpus: int) -> None:
    """120 test records of a corpus for each seed; what two seeds have in common is found by the records' names."""
    rng = np.random.default_rng([seeds, corpus])
    found = []
    for _ in range(600):
        of_record, weights = 0.3 * rng.normal(size=corpus), rng.standard_exponential((corpus, 200))
        tests = [rng.choice(corpus, 120, replace=False) for _ in range(seeds)]
        values = [0.01 + 0.02 * rng.normal() + of_record[test] + 0.1 * rng.normal(size=120) for test in tests]
        draws = [v @ weights[test] / weights[test].sum(axis=0) for v, test in zip(values, tests, strict=True)]
        means = [value.mean() for value in values]
        found.append(paired_difference(means, np.zeros(seeds), draws, np.zeros((seeds, 200))))
    covered = np.mean([low <= 0.01 <= high for low, high in (one.interval() for one in found)])
    assert covered >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 600)
    shared = np.mean([one.se_records**2 for one in found if one.se_seeds**2 > 0.3**2 / 120 / seeds])
    together = 0.3**2 / 120 * 120 / corpus  # the part of the records' variance that two splits share
    assert shared == pytest.approx(together, rel=0.3, abs=0.1 * 0.3**2 / 120)


def test_stated_power_is_the_rate_of_findings() -> None:
    rng = np.random.default_rng(5)
    spread = (0.01, 0.05, 0.0)
    truth = Difference(0.03, 0.01 / math.sqrt(3), 0.05 / math.sqrt(120), 3)
    found = [linear_study(rng, 3, 0.03, spread).interval()[0] > 0 for _ in range(1000)]
    assert truth.power(0.03) == pytest.approx(np.mean(found), abs=0.05)
    assert truth.power(0.3) > 0.99 and Difference(0, 0, 0, 3).power(0.01) == 1.0
    assert truth.power_of_equivalence(0.3) > 0.99 and truth.power_of_equivalence(0.001) == 0


def test_probability_of_improvement_by_hand() -> None:
    assert probability_of_improvement([1, 2, 3], [0, 2, 2]) == pytest.approx(6 / 9)
    assert probability_of_improvement([1, 1], [1, 1]) == 0.5


def test_seeds_that_agree_by_chance_leave_the_records_spread() -> None:
    rng = np.random.default_rng(0)
    draws = 0.02 + 0.008 * rng.standard_normal((2, 1000))
    difference = paired_difference([0.82, 0.80], [0.80, 0.78], draws, np.zeros((2, 1000)))
    low, high = difference.interval()
    records = 0.008 / 2**0.5
    assert difference.se_seeds < 1e-12 and difference.se_records == pytest.approx(records, rel=0.1)
    assert (low, high) == pytest.approx((0.02 - 1.96 * records, 0.02 + 1.96 * records), abs=0.002)
