"""A recording from anywhere to a row as the training stored them: leads by name, then `prepare`, as filter does.

What filter would keep is answered and what it would drop is refused, as is a record without one of the leads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safeecgmatch.data.preparation import Preparation, Rejected, prepare
from safeecgmatch.data.readers import Recording, Unreadable, microvolts_per_unit
from safeecgmatch.leads import LEADS, SECONDS

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


def clipped_leads(recording: Recording) -> list[str]:
    leads: NDArray[Any] = np.ascontiguousarray(recording.values.T)  # one lead after the other: numpy reads it faster
    clipped = np.zeros(len(LEADS), dtype=bool)
    enough = CLIPPED_SHARE * leads.shape[1]
    for extreme in (leads.min(axis=1), leads.max(axis=1)):
        held = leads == extreme[:, None]
        if np.count_nonzero(held) >= enough:  # in all leads together: seldom, and quickly counted
            away = np.abs(extreme - np.median(leads, axis=1)) * microvolts_per_unit(recording.units) / recording.gain
            clipped |= (held.sum(axis=1) >= enough) & (away >= CLIPPED_MICROVOLTS)
    return [lead for lead, hit in zip(LEADS, clipped, strict=True) if hit]


def conform(recording: Recording, preparation: Preparation, row: NDArray[np.int16]) -> tuple[int, str]:
    """Write a recording to `row`, zeros of the preparation's shape, as filter does.

    Returns its samples before zero-padding, and a note, or "".
    """
    rate, notes = recording.rate, []
    try:
        used = standard_leads(recording)
        fit = prepare(used, preparation, row)
    except Unreadable as error:
        raise Refused(str(error)) from error
    except Rejected as error:
        raise Refused(f"{error.reason}: {error.detail}") from error
    seconds = len(recording.values) / rate
    if seconds - SECONDS >= 0.5:
        notes.append(f"first {SECONDS} of {seconds:.4g} s")
    if fit.length < len(row[0]):
        notes.append(f"only {seconds:.3g} s, filled up with zeros")
    if round(rate) != preparation.sampling_rate:
        notes.append(f"resampled from {rate:g} to {preparation.sampling_rate} Hz")
    if clipped := clipped_leads(used.head(round(SECONDS * rate))):
        notes.append(f"{_named(clipped)} clipped")
    if fit.clipped:
        notes.append(f"{fit.clipped} samples beyond 32 mV cut off")
    return fit.length, ", ".join(notes)
