from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from safeecgmatch.reporting.statistics import Summary, holm, kendall_tau, summarise, t_interval, welch_p


def test_summary_uses_the_sample_std() -> None:
    assert summarise([1.0, 2.0, 4.0]) == pytest.approx((7 / 3, math.sqrt(7 / 3), 3))
    assert math.isnan(summarise([1.0]).std)


def test_t_interval_by_the_table() -> None:
    low, high = t_interval(Summary(0.8, 0.01, 3))
    assert high - 0.8 == pytest.approx(4.303 * 0.01 / math.sqrt(3), rel=1e-3)
    assert 0.8 - low == pytest.approx(high - 0.8)
    assert all(math.isnan(end) for end in t_interval(Summary(0.8, math.nan, 1)))


@pytest.mark.parametrize("seed", range(5))
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


@pytest.mark.parametrize("seed", range(5))
def test_kendall_equals_scipy_with_ties(seed: int) -> None:
    generator = np.random.default_rng(seed)
    a, b = generator.integers(0, 6, 12), generator.integers(0, 6, 12)
    assert kendall_tau(list(a), list(b)) == pytest.approx(stats.kendalltau(a, b).statistic)


def test_kendall_of_nothing_is_undefined() -> None:
    assert math.isnan(kendall_tau([1.0], [2.0])) and math.isnan(kendall_tau([1.0, 1.0], [1.0, 2.0]))
