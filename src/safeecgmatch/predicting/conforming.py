"""A recording from anywhere to a row as the training stored them: leads by name, the cell's rate, then `prepare`.

What could make an answer meaningless is refused here with one sentence: a missing lead, less than 10 s, missing
samples, a flat lead, a clipped lead. Everything after that is the code that filled the training's own store.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safeecgmatch.data.preparation import Rejected, prepare
from safeecgmatch.data.readers import Recording, Unreadable, microvolts_per_unit
from safeecgmatch.leads import LEADS, SECONDS

SLOWEST_RATE = 50.0  # Hz; no cell can be trained on fewer
# The low-pass before a change of rate. The published 100 Hz records of PTB-XL are its 500 Hz records through such a
# filter (least squares give it to 0.4 microvolts), read an eighth of a sample later. When an ECG begins means nothing,
# but a narrow network trained on the former answers 4 % of borderline records differently at another phase.
PASSED, KAISER, TAPS_PER_FACTOR, LATER = 0.9, 5.0, 20, 0.125
LARGEST_FACTOR = 10_000  # of the ratio of two rates: 977 Hz is exact, 359.9999 Hz becomes 360 Hz
# A lead is clipped when this share of its samples lies exactly at its extreme value, this far from its median: 0.2 s of
# 10 s. None of the 16,244 single-label records of PTB-XL is, at 100 Hz, nor any of the 300 tried at 500 Hz.
CLIPPED_SHARE, CLIPPED_MICROVOLTS = 0.02, 500.0

_LEAD = re.compile(r"(?:mdc_ecg_lead_|(?:ecg|lead)[ _.:]*)*d?(i{1,3}|av[rlf]|v[1-6])", re.IGNORECASE)
_STANDARD = {lead.upper(): lead for lead in LEADS}


class Refused(Exception):
    """The record gets no answer; the message is one sentence about it, without its name."""


def standard_name(name: str) -> str | None:
    """`AVR`, `Lead aVR`, `ECG avr` -> `aVR`; `DII` -> `II`; None for any other signal, such as `-aVR` or `vx`."""
    found = _LEAD.fullmatch(name.strip())
    return found and _STANDARD[found[1].upper()]


@lru_cache(maxsize=256)  # most records of a folder name their leads alike
def lead_order(given: tuple[str, ...]) -> list[int] | None:
    """The places of the twelve leads among the signals of a record; None where they stand there in order, alone."""
    names = [standard_name(name) for name in given]
    twice = [lead for lead in LEADS if names.count(lead) > 1]
    if twice:
        raise Refused(f"it has more than one lead {twice[0]}")
    missing = [lead for lead in LEADS if lead not in names]
    if missing:
        spelled = ", ".join(name or "(no name)" for name in given) or "none"
        raise Refused(f"it lacks {_named(missing)} (its signals are named: {spelled})")
    order = [names.index(lead) for lead in LEADS]
    return None if order == list(range(len(names))) else order


def standard_leads(recording: Recording) -> Recording:
    """The twelve leads in the study's order, chosen by name; other signals of the record are left out."""
    order = lead_order(recording.names)
    if order is None:
        return recording
    return replace(
        recording,
        values=recording.values[:, order],
        gain=recording.gain[order],
        baseline=recording.baseline[order],
        units=tuple(recording.units[place] for place in order),
        names=LEADS,
    )


def _named(leads: Sequence[str]) -> str:
    return f"lead{'s' if len(leads) > 1 else ''} {', '.join(leads)}"


def _where(hits: NDArray[np.bool_]) -> list[str]:
    return [lead for lead, hit in zip(LEADS, hits, strict=True) if hit]


def _state(hits: NDArray[np.bool_], what: str) -> str:
    leads = _where(hits)
    return f"{_named(leads)} {'are' if len(leads) > 1 else 'is'} {what}"


def check_samples(recording: Recording) -> None:
    """Refuse missing samples and leads that are flat or clipped in the 10 s that will be judged."""
    if recording.has_invalid():
        invalid = recording.invalid()
        missing = _named(_where(np.atleast_1d(invalid.any(axis=0))))
        raise Refused(f"{int(invalid.sum())} samples are missing or not numbers in {missing}")
    leads: NDArray[Any] = np.ascontiguousarray(
        recording.values.T
    )  # one lead after the other, which numpy reads much faster
    extremes = leads.min(axis=1), leads.max(axis=1)
    flat = extremes[0] == extremes[1]
    if flat.any():
        raise Refused(_state(flat, "flat"))
    enough = CLIPPED_SHARE * leads.shape[1]
    for extreme in extremes:
        held = leads == extreme[:, None]
        if np.count_nonzero(held) >= enough:  # in all leads together: seldom, and quickly counted
            away = np.abs(extreme - np.median(leads, axis=1)) * microvolts_per_unit(recording.units) / recording.gain
            clipped = (held.sum(axis=1) >= enough) & (away >= CLIPPED_MICROVOLTS)
            if clipped.any():
                raise Refused(_state(clipped, "clipped"))


@lru_cache(maxsize=16)
def low_pass(up: int, down: int) -> NDArray[np.float64]:
    """Kaiser-windowed sinc at `up` times the old rate: passes up to 0.9 of the lower Nyquist frequency, reads later."""
    half, larger = TAPS_PER_FACTOR * max(up, down), max(up, down)
    place = np.arange(-half, half + 1)
    taps = np.sinc(PASSED / larger * (place + LATER * down)) * np.kaiser(2 * half + 1, KAISER)
    return taps / taps.sum()


def resample(recording: Recording, wanted: int) -> Recording:
    """The whole record at `wanted` Hz by scipy's polyphase filter, in physical units, ends continued as a line."""
    from scipy.signal import resample_poly  # only where rates differ

    ratio = Fraction(wanted / recording.rate).limit_denominator(LARGEST_FACTOR)
    up, down = ratio.numerator, ratio.denominator
    values = resample_poly(recording.physical(), up, down, axis=0, window=low_pass(up, down), padtype="line")
    ones = np.ones(recording.leads)
    return replace(recording, rate=float(wanted), values=values, gain=ones, baseline=np.zeros_like(ones))


def conform(recording: Recording, sampling_rate: int, preprocessing: str, row: NDArray[np.int16]) -> str:
    """Write a recording to `row`, (12, samples) zeros, as the training would have; returns a note on it, or ""."""
    rate = recording.rate
    if not (np.isfinite(rate) and rate >= SLOWEST_RATE):
        raise Refused(f"its sampling rate is {rate:g} Hz, and at least {SLOWEST_RATE:g} Hz are needed")
    seconds, notes = len(recording.values) / rate, []
    if round(seconds, 3) < SECONDS:
        raise Refused(f"it is {seconds:.3g} s long, and {SECONDS} s are needed")
    if seconds - SECONDS >= 0.5:
        notes.append(f"first {SECONDS} of {seconds:.4g} s")
    try:
        used = standard_leads(recording)
        check_samples(used.head(round(SECONDS * rate)))
        if round(rate) != sampling_rate:
            if used.has_invalid():
                raise Refused(f"samples are missing after the first {SECONDS} s, and its {rate:g} Hz need resampling")
            used = resample(used, sampling_rate)
            notes.append(f"resampled from {rate:g} to {sampling_rate} Hz")
        fit = prepare(used, sampling_rate, preprocessing, row)
    except Unreadable as error:
        raise Refused(str(error)) from error
    except Rejected as error:
        raise Refused(f"it cannot be used ({error.reason}: {error.detail})") from error
    if fit.clipped:
        raise Refused(f"{fit.clipped} samples are beyond 32 mV, so its units or its signals are wrong")
    return ", ".join(notes)
