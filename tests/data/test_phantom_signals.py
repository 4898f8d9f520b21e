"""Phantom signals measured as a cardiologist would: each class shows what its disease does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter1d
from scipy.signal import find_peaks

from safeecgmatch.data.phantom.archives import layout_of
from safeecgmatch.data.phantom.patients import Cohort, Subject
from safeecgmatch.leads import LEADS

RATE = 500
Floats = NDArray[np.float64]


@pytest.fixture(scope="module", params=["ptbxl", "cinc21"])
def cohort(request: pytest.FixtureRequest) -> Cohort:
    return Cohort(layout_of(request.param).POPULATION, 3)


def records_of(dataset: str, keep: Callable[[Subject], bool], count: int = 12) -> list[Floats]:
    cohort = Cohort(layout_of(dataset).POPULATION, 3)
    chosen = [subject for subject in cohort.roster(3000) if len(subject.classes) == 1 and keep(subject)][:count]
    assert len(chosen) == count
    return [cohort.signal(subject, RATE) / 1000.0 for subject in chosen]


def with_codes(*codes: str) -> Callable[[Subject], bool]:
    return lambda subject: any(diagnosis.code in codes for diagnosis in subject.diagnoses)


def in_class(name: str) -> Callable[[Subject], bool]:
    return lambda subject: subject.classes == (name,)


def steepness(signal: Floats) -> Floats:
    """Mean absolute slope over the leads, smoothed over 30 ms: high during the QRS only."""
    return uniform_filter1d(np.abs(np.gradient(uniform_filter1d(signal, 7, axis=1), axis=1)).mean(axis=0), 15)


def beat_positions(signal: Floats) -> NDArray[np.int64]:
    slope = steepness(signal)
    return find_peaks(slope, height=0.5 * np.quantile(slope, 0.995), distance=int(0.25 * RATE))[0]


def median_beat(signal: Floats) -> Floats:
    """(12, 0.4 s before to 0.5 s after the QRS); zero is the level 120 to 80 ms before it."""
    before, after = int(0.4 * RATE), int(0.5 * RATE)
    positions = [p for p in beat_positions(signal) if before <= p < signal.shape[1] - after]
    beat = np.median([signal[:, p - before : p + after] for p in positions], axis=0)
    level: Floats = beat - beat[:, before - int(0.12 * RATE) : before - int(0.08 * RATE)].mean(axis=1, keepdims=True)
    return level


def qrs_width(signal: Floats) -> float:
    slope = steepness(median_beat(signal))
    return float((slope > 0.15 * slope.max()).sum() / RATE)


def level(records: list[Floats], leads: str, first: float, last: float) -> float:
    """Mean of some leads between two times after the QRS, the median of some records."""
    rows, part = (
        [LEADS.index(lead) for lead in leads.split()],
        slice(int((0.4 + first) * RATE), int((0.4 + last) * RATE)),
    )
    return float(np.median([median_beat(record)[rows, part].mean() for record in records]))


def rr_irregularity(signal: Floats) -> float:
    rr = np.diff(beat_positions(signal)) / RATE
    return float(np.abs(np.diff(rr)).mean() / rr.mean())


def median(measure: Callable[[Floats], float], records: list[Floats]) -> float:
    return float(np.median([measure(record) for record in records]))


@pytest.fixture(scope="module")
def normal() -> list[Floats]:
    return records_of("ptbxl", in_class("NORM"))


def test_limb_leads_obey_einthoven_and_goldberger(cohort: Cohort) -> None:
    for subject in cohort.roster(40):
        one, two, three, avr, avl, avf = cohort.signal(subject, 100)[:6].astype(np.int64)
        np.testing.assert_array_equal(one + three, two)
        assert np.abs(avr + (one + two) / 2).max() <= 0.5
        assert np.abs(avl - (one - three) / 2).max() <= 0.5
        assert np.abs(avf - (two + three) / 2).max() <= 0.5


def test_the_heart_is_the_same_at_every_sampling_rate(cohort: Cohort) -> None:
    for subject in cohort.roster(12):
        fine, coarse = cohort.signal(subject, 1000).astype(float), cohort.signal(subject, 100).astype(float)
        smooth = uniform_filter1d(fine, 9, axis=1)[:, ::10]
        assert np.corrcoef(smooth[7], coarse[7])[0, 1] > 0.9


def test_a_normal_ecg_has_normal_intervals_and_progression(normal: list[Floats]) -> None:
    assert 0.06 < median(qrs_width, normal) < 0.12
    rates = [60 * RATE / np.diff(beat_positions(record)).mean() for record in normal]
    assert min(rates) > 50 and max(rates) < 100
    assert level(normal, "II V4 V5", 0.20, 0.32) > 0.1  # T upright
    assert level(normal, "II", -0.19, -0.12) > 0.03  # P upright
    beats = np.median([median_beat(record) for record in normal], axis=0)
    r, s = beats.max(axis=1), -beats.min(axis=1)
    assert s[6] > r[6] and r[10] > s[10]  # V1 mostly down, V5 mostly up


@pytest.mark.parametrize(
    "codes, leads", [(("ASMI", "AMI"), "V2 V3"), (("IMI",), "III aVF"), (("LMI",), "I aVL")], ids=lambda x: str(x)
)
def test_infarction_raises_st_over_its_territory(codes: tuple[str, ...], leads: str, normal: list[Floats]) -> None:
    infarcts = records_of("ptbxl", with_codes(*codes))
    assert level(infarcts, leads, 0.08, 0.14) > level(normal, leads, 0.08, 0.14) + 0.08
    assert level(infarcts, leads, -0.040, -0.015) < level(normal, leads, -0.040, -0.015) - 0.05  # Q


@pytest.mark.parametrize("codes", [("CRBBB", "IRBBB"), ("CLBBB",), ("IVCD",)], ids=lambda codes: codes[0])
def test_conduction_disturbance_widens_the_qrs(codes: tuple[str, ...], normal: list[Floats]) -> None:
    assert median(qrs_width, records_of("ptbxl", with_codes(*codes))) > 1.25 * median(qrs_width, normal)


def test_right_bundle_block_ends_upwards_in_v1_and_left_is_all_downwards() -> None:
    assert level(records_of("ptbxl", with_codes("CRBBB")), "V1", 0.03, 0.07) > 0.1
    left = [median_beat(record) for record in records_of("ptbxl", with_codes("CLBBB"))]
    v1, v6 = (np.median([beat[row, 150:260] for beat in left], axis=0) for row in (6, 11))
    assert v1.max() < 0.2 < 0.6 < -v1.min()
    assert -v6.min() < 0.2 < 0.6 < v6.max()


def test_ischaemia_lowers_st_and_turns_t(normal: list[Floats]) -> None:
    ischaemic = records_of("ptbxl", with_codes("ISC_", "ISCAL"))
    assert level(ischaemic, "V5 V6 II", 0.08, 0.14) < level(normal, "V5 V6 II", 0.08, 0.14) - 0.06
    assert level(ischaemic, "V5 V6 II", 0.20, 0.32) < 0 < level(normal, "V5 V6 II", 0.20, 0.32)


def test_hypertrophy_raises_voltage(normal: list[Floats]) -> None:
    def sokolow_lyon(x: Floats) -> float:
        beat = median_beat(x)
        return float(beat[10].max() - beat[6].min())

    assert median(sokolow_lyon, records_of("ptbxl", with_codes("LVH"))) > 1.35 * median(sokolow_lyon, normal)


def test_fibrillation_is_irregular_and_has_no_p() -> None:
    fibrillation = records_of("cinc21", with_codes("164889003"))
    sinus = records_of("cinc21", in_class("NORM"))
    assert median(rr_irregularity, fibrillation) > 3 * median(rr_irregularity, sinus)
    assert level(fibrillation, "II", -0.19, -0.12) < level(sinus, "II", -0.19, -0.12) / 2  # P


def test_rates_of_slow_and_fast_rhythms() -> None:
    def rate(x: Floats) -> float:
        return float(60 * RATE / np.median(np.diff(beat_positions(x))))

    assert median(rate, records_of("cinc21", with_codes("426177001"))) < 55
    assert median(rate, records_of("cinc21", with_codes("427084000"))) > 105


def test_premature_ventricular_beats_are_wide_and_early() -> None:
    ectopic = records_of("cinc21", with_codes("427172004"))
    assert median(rr_irregularity, ectopic) > 0.1
