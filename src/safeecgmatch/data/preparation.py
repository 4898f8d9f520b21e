"""One recording to one row, for training and prediction alike: checks, band-pass, resampling, first 10 s, microvolts.

The checks look at the samples that can reach the stored row: the first 10 s, or the whole record where a filter or a
resampling mixes all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from safeecgmatch.data import selection
from safeecgmatch.data.readers import Recording
from safeecgmatch.leads import LEADS, SECONDS

PREPROCESSING = ("none", "release", "ecgmatch")  # the first two store the signal as it is
STANDARDISED = ("ecgmatch",)  # the batch is standardised per record and lead when it is drawn

BAND_HZ = (1.0, 47.0)
BAND_ORDER = 3
RATES_HZ = (50.0, 100_000.0)  # of a recording
SHORTEST_SECONDS = 1.0  # shorter records are dropped, longer ones zero-padded
LARGEST = np.iinfo(np.int16).max  # 32.767 mV; no heart reaches it


Resample = Callable[[NDArray[np.float64], float, int], NDArray[np.float64]]  # (time, leads), its rate, the wanted one


class Rejected(Exception):
    """The record cannot be used, for one of the reasons in `selection.REASONS`."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class Fit:
    """How a recording fitted into its row; `reason` is empty for a row that was written."""

    length: int = 0  # samples before zero-padding
    clipped: int = 0  # samples beyond the range of int16
    reason: str = ""
    detail: str = ""


@lru_cache(maxsize=16)
def band_pass_coefficients(rate: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    from scipy.signal import butter  # only CinC 2021 filters

    return butter(BAND_ORDER, BAND_HZ, btype="bandpass", fs=rate)


def band_pass(signal: NDArray[np.float64], rate: float) -> NDArray[np.float64]:
    """ECGMatch's filter: Butterworth of order 3, 1 to 47 Hz, forwards and backwards, along the first axis."""
    from scipy.signal import filtfilt

    if rate <= 2 * BAND_HZ[1]:
        raise Rejected(selection.UNREADABLE, f"{rate:g} Hz are too few for a band-pass up to {BAND_HZ[1]:g} Hz")
    b, a = band_pass_coefficients(rate)
    return filtfilt(b, a, signal, axis=0)


def resample(signal: NDArray[np.float64], rate: float, wanted: int) -> NDArray[np.float64]:
    """FFT resampling of the whole record to round(n * wanted / rate) samples."""
    from scipy.signal import resample as fft_resample

    return fft_resample(signal, round(len(signal) * wanted / rate), axis=0)


def _names(hits: NDArray[np.bool_]) -> str:
    """`hits`: (time, leads); the leads that have one."""
    leads = np.atleast_1d(hits.any(axis=0))
    return "lead " + ", ".join(name for name, hit in zip(LEADS, leads, strict=True) if hit)


@dataclass(frozen=True)
class Preparation:
    """How a dataset's recordings become rows; filter and predict use the same one."""

    sampling_rate: int
    preprocessing: str
    resample: Resample = resample

    @property
    def shape(self) -> tuple[int, int]:
        return len(LEADS), SECONDS * self.sampling_rate


def prepare(recording: Recording, preparation: Preparation, row: NDArray[np.int16]) -> Fit:
    """Write a recording to `row`, zeros of the preparation's shape, in microvolts; raises `Rejected` if unusable."""
    sampling_rate, (_, samples) = preparation.sampling_rate, preparation.shape
    if recording.leads != len(LEADS):
        raise Rejected(selection.WRONG_LEADS, f"{recording.leads} leads, not {len(LEADS)}")
    if not RATES_HZ[0] <= recording.rate <= RATES_HZ[1]:
        raise Rejected(selection.UNREADABLE, f"its sampling rate is {recording.rate:g} Hz")
    other_rate = round(recording.rate) != sampling_rate
    filtered = preparation.preprocessing == "ecgmatch"
    used = recording if other_rate or filtered else recording.head(samples)
    if used.has_invalid():
        invalid = used.invalid()
        first = int(invalid.any(axis=1).argmax())
        detail = f"{int(invalid.sum())} missing samples, the first at sample {first}, {_names(invalid)}"
        raise Rejected(selection.INVALID, detail)
    if len(used.values) < SHORTEST_SECONDS * recording.rate:
        raise Rejected(selection.TOO_SHORT, f"{len(used.values)} samples at {recording.rate:g} Hz")
    with np.errstate(over="ignore", invalid="ignore"):  # a gain of 1e-300; what comes of it is rejected below
        signal: NDArray[np.number] = used.microvolts()
        if filtered:
            signal = band_pass(signal.astype(np.float64), recording.rate)
        if other_rate:
            signal = preparation.resample(signal.astype(np.float64), recording.rate, sampling_rate)
    signal = signal[:samples]
    clipped = 0
    if signal.dtype != np.int16:
        beyond = ~(np.abs(np.rint(signal)) <= LARGEST)  # by `not`, so that it holds what is no number too
        wrong = beyond.mean(axis=0) > 0.5
        if wrong.any():
            raise Rejected(selection.IMPLAUSIBLE, f"more than half of {_names(wrong[None])} is beyond 32 mV")
        clipped = int(beyond.sum())
        signal = np.clip(np.rint(signal), -LARGEST, LARGEST)
    filled = row[:, : len(signal)]
    filled[:] = signal.T
    flat = filled.min(axis=1) == filled.max(axis=1)
    if flat.any():
        zero = flat & (filled[:, 0] == 0)
        row[:] = 0  # an unusable record leaves no samples behind
        which = (selection.ZERO_LEAD, zero) if zero.any() else (selection.FLAT_LEAD, flat)
        raise Rejected(which[0], _names(which[1][None]))
    return Fit(len(signal), clipped)
