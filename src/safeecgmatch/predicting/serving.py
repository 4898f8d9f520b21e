"""Answers to requests that carry the signals themselves: what the served model does with its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from safeecgmatch.data.readers import Recording
from safeecgmatch.leads import LEADS, SECONDS
from safeecgmatch.predicting.answers import answers_of
from safeecgmatch.predicting.conforming import Refused, conform
from safeecgmatch.predicting.trained import Trained

SIGNALS, RATE, NAMES, UNITS = "signals", "sampling_rate", "leads", "units"
DEFAULT_UNITS = "mV"


def recording_of(request: Mapping[str, Any]) -> Recording:
    """One row of a request; numbers are one list per lead, in the order of `leads`."""
    shape = f"{SIGNALS} must hold one list of numbers per lead, all of one length"
    try:
        values = np.array(request.get(SIGNALS), dtype=np.float64)
    except (TypeError, ValueError):
        raise Refused(shape) from None
    names = request[NAMES]
    if values.ndim != 2:
        raise Refused(shape)
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise Refused(f"{NAMES} must be a list of names")
    if len(names) != len(values):
        raise Refused(f"{NAMES} has {len(names)} names for {len(values)} signals")
    units = request.get(UNITS)
    units = DEFAULT_UNITS if units is None or units != units else str(units)  # a column that lacks it holds NaN
    try:
        rate = float(request[RATE])
    except (TypeError, ValueError):
        raise Refused(f"{RATE} must be a number") from None
    ones = np.ones(len(values))
    return Recording(rate, values.T, ones, np.zeros_like(ones), (units,) * len(ones), tuple(names))


def respond(trained: Trained, requests: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One line per request, with the numbers of `predict`; raises `Refused` for the first that cannot be used."""
    if not requests:
        raise Refused("The request holds no record.")
    rows, notes, lengths = trained.blank_rows(len(requests)), [], []
    for number, (request, row) in enumerate(zip(requests, rows, strict=True)):
        try:
            length, note = conform(recording_of(request), trained.preparation, row)
        except Refused as refusal:
            raise Refused(f"Record {number} of the request cannot be used: {refusal}.") from None
        notes.append(note)
        lengths.append(length)
    answers = answers_of(trained, trained.scores(trained.inputs(rows, lengths)))
    return pd.DataFrame(answers).assign(note=notes, notice=trained.notice)


def example(trained: Trained) -> list[dict[str, Any]]:
    """A request of the right form: waves, not an ECG."""
    time = np.arange(SECONDS * trained.sampling_rate) / trained.sampling_rate
    signals = [np.round(np.sin(2 * np.pi * (1 + place / 12) * time), 3).tolist() for place in range(len(LEADS))]
    return [{SIGNALS: signals, RATE: float(trained.sampling_rate), NAMES: list(LEADS), UNITS: DEFAULT_UNITS}]
