"""Reading WFDB records: a fast path for the plain form that PTB-XL and the Challenge use, `wfdb` for all others.

Plain form: one segment, one signal file beside the header, every signal in format 16 (`16`, `16+24`, `16x1+24`).
`wfdb` spends most of its time on parsing headers; here a header is split on blanks. The samples are the same.
What is read is checked on the way: a listed file against the digest of the manifest, a signal against its checksum.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import FileIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from safeecgmatch.errors import UserError

INVALID = np.iinfo(np.int16).min  # WFDB's mark of a missing sample in format 16
LARGEST_HEADER = 200_000  # bytes; those of 12 leads have about 700, and a parser should not be fed a novel
MICROVOLTS = {"mv": 1e3, "uv": 1.0, "v": 1e6}

# A header may name files only in its own folder: no separators, no leading dot.
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
# Numbers are of bounded length: Python refuses to read 5,000 digits, and 400 of them are infinite.
_FORMAT = re.compile(r"16(?:x1)?(?:\+(\d{1,12}))?")
_GAIN = re.compile(r"(\d+\.?\d*(?:[eE][-+]?\d+)?)(?:\((-?\d+)\))?(?:/(\S+))?")
_INTEGER = re.compile(r"-?\d+")
_COUNT = re.compile(r"\d{1,12}")
_CHECKSUM = re.compile(r"-?\d{1,5}")
_RATE = re.compile(r"\d{1,12}\.?\d*")


class Unreadable(Exception):
    """A record that cannot be used; the message is one sentence for the drop report."""


@dataclass(frozen=True)
class Header:
    """What the fast path needs; `baseline` and `gain` turn stored numbers into physical ones, lead by lead."""

    rate: float
    samples: int
    file: str
    offset: int
    gain: NDArray[np.float64]
    baseline: NDArray[np.float64]
    units: tuple[str, ...]
    names: tuple[str, ...]  # as the header spells them, "" where it gives none
    checksums: tuple[str, ...]  # of the leads, "" where the header gives none

    @property
    def leads(self) -> int:
        return len(self.units)


@dataclass(frozen=True)
class Recording:
    """Samples as stored, (time, leads): int16 from the fast path, physical floats (NaN = missing) from `wfdb`."""

    rate: float
    values: NDArray[np.int16] | NDArray[np.float64]
    gain: NDArray[np.float64]
    baseline: NDArray[np.float64]
    units: tuple[str, ...]
    names: tuple[str, ...] = ()

    @property
    def leads(self) -> int:
        return self.values.shape[1]

    def head(self, samples: int) -> Recording:
        return Recording(self.rate, self.values[:samples], self.gain, self.baseline, self.units, self.names)

    def has_invalid(self) -> bool:
        """Whether `invalid` marks any sample; for int16 without an array of marks, as the mark is the least value."""
        if self.values.dtype == np.int16:
            return self.values.size > 0 and bool(self.values.min() == INVALID)
        return bool(self.invalid().any())

    def invalid(self) -> NDArray[np.bool_]:
        return self.values == INVALID if self.values.dtype == np.int16 else ~np.isfinite(self.values)

    def physical(self) -> NDArray[np.float64]:
        """(value - baseline) / gain, NaN where missing: equal to `wfdb`'s `p_signal`."""
        physical = (self.values.astype(np.float64) - self.baseline) / self.gain
        physical[self.invalid()] = np.nan
        return physical

    def microvolts(self) -> NDArray[np.int16] | NDArray[np.float64]:
        """In microvolts; the stored integers themselves where they already are (1000 per mV, as in PTB-XL)."""
        scale = microvolts_per_unit(self.units)
        if self.values.dtype == np.int16 and not self.baseline.any() and (self.gain == scale).all():
            return self.values
        return self.physical() * scale


@lru_cache(maxsize=256)
def microvolts_per_unit(units: tuple[str, ...]) -> NDArray[np.float64]:
    unknown = [unit for unit in units if unit.lower() not in MICROVOLTS]
    if unknown:
        raise Unreadable(f"its signals are in the unit {unknown[0]!r}, which is not a voltage")
    return np.array([MICROVOLTS[unit.lower()] for unit in units])


def header_lines(text: str) -> list[list[str]]:
    """The lines of a header, comments left out, split on blanks."""
    lines = [line.split() for line in text.splitlines()]
    return [line for line in lines if line and not line[0].startswith("#")]


def parse_header(lines: list[list[str]]) -> Header | None:
    """The header if it is of the plain form, else None.

    The record line may carry a file name in place of the record name (`E00004.mat 12 500 5000`), as old Challenge
    files do and `wfdb` refuses.
    """
    if len(lines) < 2 or len(lines[0]) < 4 or "/" in lines[0][0]:
        return None
    _, leads, rate, samples = lines[0][:4]
    if not (_COUNT.fullmatch(leads) and _COUNT.fullmatch(samples) and _RATE.fullmatch(rate)):
        return None
    signals = lines[1:]
    if len(signals) != int(leads) or min(map(len, signals)) < 5 or len({line[0] for line in signals}) != 1:
        return None
    storage = _storage(tuple((line[1], line[2], line[4]) for line in signals))
    names = tuple(" ".join(line[8:]) for line in signals)
    checksums = tuple(line[6] if len(line) > 6 else "" for line in signals)
    return storage and Header(float(rate), int(samples), signals[0][0], *storage, names, checksums)


@lru_cache(maxsize=256)  # most records of an archive are stored in the same way
def _storage(
    signals: tuple[tuple[str, str, str], ...],
) -> tuple[int, NDArray[np.float64], NDArray[np.float64], tuple[str, ...]] | None:
    """Offset, gains, baselines and units from format, gain and zero of every signal; None if not of the plain form."""
    offsets, gains, baselines, units = zip(*(_signal(*signal) for signal in signals), strict=True)
    if len(set(offsets)) != 1 or 0 in gains:
        return None
    gain, baseline = np.array(gains), np.array(baselines)
    gain.flags.writeable = baseline.flags.writeable = False  # shared by all records that have them
    return offsets[0], gain, baseline, units


def _signal(form: str, gain: str, zero: str) -> tuple[int, float, float, str]:
    """Offset, gain, baseline and unit of a signal of the plain form; a gain of 0, which none has, for any other."""
    offset, numbers, middle = _FORMAT.fullmatch(form), _GAIN.fullmatch(gain), _INTEGER.fullmatch(zero)
    if not offset or not numbers or not middle:
        return 0, 0.0, 0.0, ""
    baseline = middle[0] if numbers[2] is None else numbers[2]
    return int(offset[1] or 0), float(numbers[1]), float(baseline), numbers[3] or "mV"


def read_bytes(file: Path) -> bytes:
    try:
        with FileIO(file) as stream:  # no buffer: opening files is a good part of reading a record
            size = os.fstat(stream.fileno()).st_size
            if size > LARGEST_HEADER and file.suffix == ".hea":
                raise Unreadable(f"{file.name} has {size:,} bytes, and no header is that long")
            return stream.readall()
    except FileNotFoundError:
        raise Unreadable(f"{file.name} is missing") from None
    except OSError as error:
        raise Unreadable(f"{file.name} cannot be opened ({error.strerror})") from error


@dataclass(frozen=True)
class Archive:
    """A dataset's folder, of which nothing is read that differs from what `download` verified.

    `files` are the SHA-256 by relative name ("" where nobody stated one); None for a folder without a list.
    """

    folder: Path
    files: Mapping[str, str] | None = None
    dataset: str = ""

    def read(self, name: str) -> bytes:
        content = read_bytes(self.folder / name)
        if self.files is None:
            return content
        if name not in self.files:
            raise Unreadable(f"{name} is not in the list of the archive's files")
        if self.files[name] not in ("", hashlib.sha256(content).hexdigest()):
            again = f"run `dvc repro -f download@{self.dataset}`"
            raise UserError(f"{self.folder / name} has changed since `download` verified it: {again}.")
        return content

    def text(self, header: str) -> str:
        """A header's text; whatever is not UTF-8 is in comments and is replaced."""
        return self.read(header).decode("utf-8", errors="replace")

    def record(self, header: str) -> Recording:
        """The record of a `.hea` file; raises `Unreadable` with a sentence that says why not."""
        lines = header_lines(self.text(header))
        path, beside = self.folder / header, header.rpartition("/")[0]
        files = {line[0]: f"{beside}/{line[0]}" if beside else line[0] for line in lines[1:] if line[0] != "~"}
        _refuse_foreign_files(lines, path)
        words = [*(lines[0] if lines else []), "", "", ""]
        if words[1].isdecimal() and not words[2][:1].isdecimal():
            raise Unreadable(f"{path.name} states no sampling rate")  # wfdb would take 250 Hz
        plain = parse_header(lines)
        if plain is not None:
            return _decode(plain, self.read(files[plain.file]))
        for file in files.values() if self.files else ():  # wfdb opens them itself
            self.read(file)
        return read_with_wfdb(path)


def read_record(header: Path) -> Recording:
    """The record of a `.hea` file that belongs to no archive."""
    return Archive(header.parent).record(header.name)


def _refuse_foreign_files(lines: list[list[str]], header: Path) -> None:
    """Every file that a header names has to lie beside it, whoever reads it afterwards."""
    record = {line[0].split("/")[0] for line in lines[:1]}
    files = {line[0] for line in lines[1:]} - {"~"}
    for name in sorted(record | files):
        if not PLAIN_NAME.fullmatch(name):
            raise Unreadable(f"{header.name} names the file {name!r}, which is not a plain name in its own folder")


def _decode(header: Header, content: bytes) -> Recording:
    """The samples of a signal file of the plain form."""
    held = max(len(content) - header.offset, 0) // 2 // header.leads
    if held < header.samples:
        raise Unreadable(f"{header.file} holds {held} samples per lead, its header says {header.samples}")
    values = np.frombuffer(content, "<i2", header.samples * header.leads, header.offset)
    values = values.reshape(header.samples, header.leads)
    check_sums(header.file, values, header.checksums)
    return Recording(header.rate, values, header.gain, header.baseline, header.units, header.names)


def check_sums(file: str, values: NDArray[np.integer], stated: Sequence[object]) -> None:
    """Compare the sum of each lead's samples with the one that the header states, modulo 2^16 as WFDB has it."""
    if not len(values):  # the header leaves the length open, and its checksums mean nothing
        return
    sums = values.sum(axis=0, dtype=np.int16 if values.dtype == np.int16 else np.int64).tolist()
    for lead, (found, wanted) in enumerate(zip(sums, map(str, stated), strict=True), 1):
        if _CHECKSUM.fullmatch(wanted) and (found - int(wanted)) % (1 << 16):
            raise Unreadable(f"signal {lead} of {file} does not have the checksum that its header states")


def read_with_wfdb(header: Path) -> Recording:
    """The reference reader, for every form that the fast path does not know."""
    import wfdb  # slow to import, seldom needed

    try:
        record = wfdb.rdrecord(str(header.with_suffix("")))
        values = np.asarray(record.p_signal, dtype=np.float64)
        units, names = tuple(record.units), tuple(name or "" for name in record.sig_name)
        stored = wfdb.rdrecord(str(header.with_suffix("")), physical=False, smooth_frames=False, m2s=False)
        for number, samples in enumerate(getattr(stored, "e_d_signal", None) or ()):  # none in a multi-segment record
            check_sums(stored.file_name[number], samples[:, None], stored.checksum[number : number + 1])
    except Unreadable:
        raise
    except Exception as error:  # wfdb raises anything from IndexError to its own classes on damaged files
        reason = f"{type(error).__name__}: {error}"[:200]
        raise Unreadable(f"{header.name} cannot be read by wfdb ({reason})") from error
    if values.ndim != 2:
        raise Unreadable(f"{header.name} holds no signal")
    return Recording(float(record.fs), values, np.ones(values.shape[1]), np.zeros(values.shape[1]), units, names)
