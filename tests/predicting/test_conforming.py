"""Recordings from anywhere, good and bad, on their way to a row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from safeecgmatch.data.preparation import Preparation
from safeecgmatch.data.readers import Recording
from safeecgmatch.leads import LEADS
from safeecgmatch.predicting.conforming import Refused, conform, standard_name

Values = NDArray[np.floating]


def recording(values: Values, rate: float = 100, names: tuple[str, ...] = LEADS, unit: str = "mV") -> Recording:
    leads = values.shape[1]
    return Recording(rate, values, np.ones(leads), np.zeros(leads), (unit,) * leads, names)


def sines(rate: float = 100, seconds: float = 10, leads: int = 12, later: float = 0.0) -> Values:
    """In millivolts, each lead with its own frequency and offset."""
    time = (np.arange(round(rate * seconds)) + later) / rate
    return np.stack([np.sin(2 * np.pi * (0.973 + 0.237 * lead) * time) + lead / 10 for lead in range(leads)], axis=1)


def row_of(record: Recording, rate: int = 100) -> tuple[NDArray[np.int16], str]:
    conformed = conform(record, Preparation(rate, "none"))
    return conformed.row, conformed.note


@pytest.mark.parametrize(
    ("spelled", "lead"),
    [
        ("I", "I"), ("avr", "aVR"), ("AVL", "aVL"), ("Lead II", "II"), ("lead_v3", "V3"), ("ECG aVF", "aVF"),
        ("MDC_ECG_LEAD_V6", "V6"), ("DIII", "III"), (" V1 ", "V1"), ("-aVR", None), ("lead -aVR", None), ("vx", None),
        ("V7", None), ("IIII", None), ("", None), ("RESP", None),
    ],
)  # fmt: skip
def test_spellings(spelled: str, lead: str | None) -> None:
    assert standard_name(spelled) == lead


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(14)), st.sampled_from([str.upper, str.lower, "Lead {}".format]))
def test_leads_are_found_by_name_in_any_order_among_other_signals(
    order: list[int], spell: Callable[[str], str]
) -> None:
    values, names = sines(leads=14), (*map(spell, LEADS), "vx", "RESP")
    expected, _ = row_of(recording(values[:, :12]))
    units = tuple("bpm" if names[place] == "RESP" else "mV" for place in order)
    shuffled = Recording(100, values[:, order], np.ones(14), np.zeros(14), units, tuple(names[n] for n in order))
    np.testing.assert_array_equal(row_of(shuffled)[0], expected)


def test_gains_baselines_and_units_go_with_their_leads() -> None:
    gain, baseline, units = np.arange(1, 13) * 100.0, np.arange(12) * 7.0, ("mV", "uV", "V") * 4
    in_units = sines() * [{"mV": 1.0, "uV": 1e3, "V": 1e-3}[unit] for unit in units]
    stored = in_units * gain + baseline
    back = Recording(100, stored[:, ::-1], gain[::-1], baseline[::-1], units[::-1], LEADS[::-1])
    np.testing.assert_array_equal(row_of(back)[0], row_of(recording(sines()))[0])


def with_lead(values: Values, lead: int, samples: Values | float, start: int = 0, end: int | None = None) -> Values:
    changed = values.copy()
    changed[start:end, lead] = samples
    return changed


GOOD = sines()
LARGEST = GOOD[:, 3].max()
BAD = {
    "lacks lead V6": recording(GOOD[:, :11], names=LEADS[:11]),
    r"lacks leads I, II.*\(its signals are named: none\)": recording(GOOD, names=()),
    "more than one lead II": recording(GOOD, names=("I", "II", "DII", *LEADS[3:])),
    "too short: 99 samples at 100 Hz": recording(GOOD[:99]),
    "too short: 0 samples at 100 Hz": recording(GOOD[:0]),
    "3 missing samples, the first at sample 0, lead II, V1": recording(
        with_lead(with_lead(GOOD, 1, np.nan, 5, 7), 6, np.inf, 0, 1)
    ),
    "flat lead: lead aVR": recording(with_lead(GOOD, 3, 0.7)),
    "all-zero lead: lead I, V6": recording(with_lead(with_lead(GOOD, 0, 0.0), 11, 0.0)),
    "unit 'mmHg', which is not a voltage": recording(GOOD, unit="mmHg"),
    "sampling rate is 49 Hz": recording(GOOD, 49),
    "sampling rate is nan Hz": recording(GOOD, float("nan")),
    "V6 is beyond 32 mV": recording(GOOD, unit="V"),
    "1 missing samples, the first at sample 5500": recording(with_lead(sines(500, 12), 2, np.nan, 5500, 5501), 500),
}


@pytest.mark.parametrize("sentence", BAD)
def test_a_bad_recording_is_refused_with_its_sentence(sentence: str) -> None:
    with pytest.raises(Refused, match=sentence):
        row_of(BAD[sentence])


ODD = {
    "only 6.2 s, filled up with zeros": recording(GOOD[:620]),
    "first 10 of 12 s, resampled from 500 to 100 Hz": recording(sines(500, 12), 500),
    "lead aVR clipped": recording(np.minimum(GOOD, [9.0] * 3 + [LARGEST * 0.9] + [9.0] * 8)),
    "lead V2 clipped": recording(np.maximum(GOOD, [-9.0] * 7 + [GOOD[:, 7].min() * 0.5] + [-9.0] * 4)),
    "2 samples beyond 32 mV cut off": recording(with_lead(GOOD, 2, 40.0, 7, 9)),
}


@pytest.mark.parametrize("note", ODD)
def test_what_filter_would_keep_is_answered_with_a_note(note: str) -> None:
    assert row_of(ODD[note])[1] == note


def test_a_brief_plateau_and_small_steps_are_not_clipping() -> None:
    assert row_of(recording(with_lead(GOOD, 4, GOOD[:, 4].max(), 0, 15)))[1] == ""
    assert row_of(recording(np.round(GOOD * 0.1, 1)))[1] == ""  # coarse, but never far from the median
