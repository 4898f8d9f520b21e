from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from safeecgmatch.data.preparation import (
    Fit,
    Preparation,
    Rejected,
    band_pass,
    band_pass_coefficients,
    prepare,
    resample,
)
from safeecgmatch.data.readers import Recording
from tests.data.tiny import waves
from tests.vectors import load_vector


def recording(values: NDArray[np.int16] | NDArray[np.float64], rate: float = 100, gain: float = 1000) -> Recording:
    leads = values.shape[1]
    return Recording(rate, values, np.full(leads, float(gain)), np.zeros(leads), ("mV",) * leads)


def fit(recording: Recording, sampling_rate: int, preprocessing: str) -> tuple[NDArray[np.int16], Fit]:
    row = np.zeros((12, 10 * sampling_rate), dtype=np.int16)
    return row, prepare(recording, Preparation(sampling_rate, preprocessing), row)


def reason_of(values: NDArray[np.int16], preprocessing: str = "none", rate: float = 100) -> tuple[str, str]:
    with pytest.raises(Rejected) as caught:
        fit(recording(values, rate), 100, preprocessing)
    return caught.value.reason, caught.value.detail


def test_the_filter_equals_the_vector() -> None:
    vector = load_vector("preproc_ecgmatch_original")
    b, a = band_pass_coefficients(vector["fs"])
    np.testing.assert_allclose(b, vector["b"], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(a, vector["a"], rtol=1e-9)
    filtered = band_pass(np.array(vector["x"]).T, vector["fs"]).T
    standardised = (filtered - filtered.mean(axis=1, keepdims=True)) / filtered.std(axis=1, keepdims=True)
    wanted = np.array(vector["output_after_filtfilt_and_per_lead_standardisation"])
    np.testing.assert_allclose(
        standardised, wanted[:, : standardised.shape[1]], rtol=vector["rtol"], atol=vector["atol"]
    )


def test_a_plain_row_is_the_transposed_record() -> None:
    values = waves(1, 1000)
    row, result = fit(recording(values), 100, "none")
    np.testing.assert_array_equal(row, values.T)
    assert result == Fit(length=1000, clipped=0)


def test_first_ten_seconds_and_zero_padding() -> None:
    long, short = waves(1, 1500), waves(2, 700)
    np.testing.assert_array_equal(fit(recording(long), 100, "release")[0], long[:1000].T)
    row, result = fit(recording(short), 100, "release")
    np.testing.assert_array_equal(row[:, :700], short.T)
    assert result.length == 700
    assert not row[:, 700:].any()


def test_one_second_is_the_shortest() -> None:
    assert fit(recording(waves(1, 100)), 100, "none")[1].length == 100


def changed(samples: int, *changes: tuple[slice | int, int, int]) -> NDArray[np.int16]:
    """Waves of which some samples of some leads have one value: (samples, lead, value)."""
    values = waves(1, samples)
    for where, lead, value in changes:
        values[where, lead] = value
    return values


ALL = slice(None)
REJECTED = [
    (waves(1, 99), "too short", "99 samples at 100 Hz"),
    (waves(1, 0), "too short", "0 samples at 100 Hz"),
    *((waves(1, 1000, leads), "wrong lead count", f"{leads} leads, not 12") for leads in (1, 8, 11, 13)),
    (
        changed(1000, (5, 1, -32768), (9, 6, -32768)),
        "NaN or invalid samples",
        "2 missing samples, the first at sample 5, lead II, V1",
    ),
    (changed(1000, (ALL, 4, 7)), "flat lead", "lead aVL"),
    (changed(1000, (ALL, 4, 0)), "all-zero lead", "lead aVL"),
    (changed(1000, (ALL, 4, 7), (ALL, 5, 0)), "all-zero lead", "lead aVF"),
    (changed(1500, (slice(1000), 0, 0)), "all-zero lead", "lead I"),  # in the stored part alone
    (changed(700, (ALL, 4, 7)), "flat lead", "lead aVL"),  # and padded
]


@pytest.mark.parametrize(
    ("values", "reason", "detail"), REJECTED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_cannot_be_used_has_a_reason(values: NDArray[np.int16], reason: str, detail: str) -> None:
    assert reason_of(values) == (reason, detail)


def test_a_constant_lead_has_no_signal_behind_the_band_pass_either() -> None:
    assert {reason_of(changed(1000, (ALL, 4, constant)), "ecgmatch") for constant in (0, 7)} == {
        ("all-zero lead", "lead aVL")
    }


def test_missing_samples_behind_the_stored_part_matter_only_if_they_can_reach_it() -> None:
    values = changed(1500, (1200, 3, -32768))
    np.testing.assert_array_equal(fit(recording(values), 100, "release")[0], values[:1000].T)
    assert reason_of(values, "ecgmatch")[0] == "NaN or invalid samples"
    assert reason_of(values, "release", rate=120)[0] == "NaN or invalid samples"


def test_infinite_floats_from_the_fallback_reader_are_invalid() -> None:
    values = waves(1, 1000).astype(np.float64)
    values[3, 3] = np.inf
    with pytest.raises(Rejected, match="NaN or invalid samples"):
        fit(recording(values, gain=1), 100, "none")


def test_a_rejected_record_leaves_zeros() -> None:
    values = changed(1000, (ALL, 4, 0))
    row = np.zeros((12, 1000), dtype=np.int16)
    with pytest.raises(Rejected):
        prepare(recording(values), Preparation(100, "none"), row)
    assert not row.any()


def test_resampling_keeps_a_slow_wave() -> None:
    time = np.arange(2570) / 257
    wave = 1000 * np.sin(2 * np.pi * 1.3 * time)[:, None] * np.ones(12)
    row, result = fit(recording(np.rint(wave).astype(np.int16), rate=257), 100, "release")
    expected = 1000 * np.sin(2 * np.pi * 1.3 * np.arange(1000) / 100)
    assert result.length == 1000
    np.testing.assert_allclose(row[0, 50:-50], expected[50:-50], atol=10)


def test_resampled_length() -> None:
    assert resample(waves(1, 1001).astype(float), 257, 500).shape == (round(1001 * 500 / 257), 12)


def test_the_filter_removes_wander_and_mains_and_keeps_the_middle() -> None:
    time = np.arange(5000) / 500
    wander, mains, middle = (np.sin(2 * np.pi * frequency * time) for frequency in (0.1, 100, 10))
    signal = (1000 * (wander + mains + middle))[:, None] * np.ones(12)
    row, _ = fit(recording(np.rint(signal).astype(np.int16), rate=500), 500, "ecgmatch")
    np.testing.assert_allclose(row[0, 1000:4000], 1000 * middle[1000:4000], atol=40)


def test_a_rate_too_low_for_the_filter_is_a_reason() -> None:
    reason, detail = reason_of(waves(1, 900), "ecgmatch", rate=90)
    assert (reason, detail) == ("unreadable", "90 Hz are too few for a band-pass up to 47 Hz")


def test_amplitudes_beyond_the_range_are_clipped_and_counted() -> None:
    values = np.clip(waves(1, 1000), -1000, 1000)
    values[10, 0], values[11, 0] = 30_000, -30_000
    row, result = fit(recording(values, gain=500), 100, "none")
    assert (result.clipped, row[0, 10], row[0, 11]) == (2, 32_767, -32_767)
    assert row[0, 12] == values[12, 0] * 2
