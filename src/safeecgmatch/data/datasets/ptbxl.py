"""PTB-XL: which records have exactly one diagnostic superclass, and where their signals are.

Every diagnostic statement of a record counts, whatever its likelihood, 0 included. Rows are in ascending `ecg_id`.
"""

from __future__ import annotations

import ast
import csv
import io
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from safeecgmatch.data import preparation
from safeecgmatch.data.descriptor import Dataset, Files
from safeecgmatch.data.readers import Archive, Unreadable
from safeecgmatch.data.selection import MULTI_LABEL, NO_LABEL, UNREADABLE, UNSAFE, Candidate, Drop, Verdicts, is_safe
from safeecgmatch.errors import UserError

DATABASE, STATEMENTS = "ptbxl_database.csv", "scp_statements.csv"
SEEN, UNSEEN = ("NORM", "MI", "CD"), ("STTC", "HYP")
FILENAMES = {100: "filename_lr", 500: "filename_hr"}
PUBLISHED_ROWS = 21_799  # version 1.0.3
PUBLISHED_COUNTS = {"NORM": 9069, "MI": 2532, "STTC": 2400, "CD": 1708, "HYP": 535}
LONGEST_CODES = 10_000  # characters; the longest of v1.0.3 has under 200, and a parser should not be fed a novel
_PLAIN_CODES = re.compile(r"\{CODE(?:, CODE)*\}".replace("CODE", r"'[A-Za-z0-9_/()]+': [0-9]+\.[0-9]+"))


def stored_rate(sampling_rate: int) -> int:
    """The published 100 Hz files at exactly that rate, else the 500 Hz ones, which the filter resamples if need be."""
    return 100 if sampling_rate == 100 else 500


def files(sampling_rate: int) -> Files:
    rate = stored_rate(sampling_rate)
    return Files(f"records{rate}", "dat", 12 * 10 * 2 * rate, tables={DATABASE: 7_000_000, STATEMENTS: 10_000})


def read_csv(archive: Archive, table: str, columns: tuple[str, ...]) -> list[dict[str, str]]:
    source = archive.folder / table
    try:
        reader = csv.DictReader(io.StringIO(archive.read(table).decode("utf-8-sig"), newline=""), restval="")
        missing = [column for column in columns if column not in (reader.fieldnames or [])]
        if missing:
            raise UserError(f"{source} has no column {missing[0]!r}: is it the table of PTB-XL? Download it again.")
        return list(reader)
    except Unreadable as error:
        raise UserError(f"{archive.folder}: {error}: run the download stage of ptbxl first.") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{source} is not a readable CSV file ({error}): download it again.") from error


def superclass_of_code(archive: Archive) -> dict[str, str]:
    """SCP code -> superclass, for the diagnostic statements only."""
    rows = read_csv(archive, STATEMENTS, ("", "diagnostic", "diagnostic_class"))
    return {
        row[""]: row["diagnostic_class"]
        for row in rows
        if row["diagnostic"] in ("1", "1.0") and row["diagnostic_class"] in SEEN + UNSEEN
    }


@lru_cache(maxsize=4096)  # many records have the same text
def parse_codes(text: str) -> tuple[str, ...] | None:
    """The keys of `{'NORM': 100.0, 'SR': 0.0}`, else None. Only literals are accepted, nothing is run."""
    if len(text) > LONGEST_CODES:
        return None
    if _PLAIN_CODES.fullmatch(text):  # all of v1.0.3; Python's parser takes twenty times as long
        return tuple(dict.fromkeys(text.split("'")[1::2]))
    try:
        codes = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return tuple(str(code) for code in codes) if isinstance(codes, dict) else None


def _number(row: Mapping[str, str]) -> int:
    return int(row["ecg_id"]) if re.fullmatch("[0-9]{1,12}", row["ecg_id"]) else -1


def _judge(row: Mapping[str, str], classes: Mapping[str, str], column: str) -> Candidate | Drop:
    record = row["ecg_id"]
    if _number(row) < 0:
        return Drop(record, UNREADABLE, "its ecg_id is not a number")
    codes = parse_codes(row["scp_codes"])
    if codes is None:
        return Drop(record, NO_LABEL, "its scp_codes are not a dictionary of codes")
    found = sorted({classes[code] for code in codes if code in classes})
    if not found:
        return Drop(record, NO_LABEL)
    if len(found) > 1:
        return Drop(record, MULTI_LABEL)
    if not is_safe(row[column]):
        return Drop(record, UNSAFE, f"{column} {row[column]!r} is not a plain path inside the archive")
    patient = row["patient_id"].removesuffix(".0")
    return Candidate(record, f"{row[column]}.hea", found[0], "ptbxl", patient, row.get("strat_fold", ""))


def check_counts(rows: int, counts: Mapping[str, int]) -> list[str]:
    """Warnings where the table is not that of v1.0.3, or claims to be and gives other counts."""
    if rows != PUBLISHED_ROWS:
        return [f"{DATABASE} has {rows:,} rows, v1.0.3 has {PUBLISHED_ROWS:,}: its class counts cannot be checked."]
    if dict(counts) != PUBLISHED_COUNTS:
        return [f"{DATABASE} has the rows of v1.0.3 but single-label counts {dict(counts)}, not {PUBLISHED_COUNTS}."]
    return []


def select(archive: Archive, sampling_rate: int) -> Verdicts:
    """Judge the records that the table lists."""
    column = FILENAMES[stored_rate(sampling_rate)]
    classes = superclass_of_code(archive)
    rows = read_csv(archive, DATABASE, ("ecg_id", "patient_id", "scp_codes", column))
    verdicts = Verdicts.of([_judge(row, classes, column) for row in sorted(rows, key=_number)])
    counts = Counter(candidate.label for candidate in verdicts.candidates)
    return replace(verdicts, warnings=check_counts(len(rows), counts))


# The low-pass before a change of rate. The published 100 Hz records are the 500 Hz records through such a filter (least
# squares give it to 0.4 microvolts), read an eighth of a sample later. When an ECG begins means nothing, but a narrow
# network trained on the former answers 4 % of borderline records differently at another phase.
PASSED, KAISER, TAPS_PER_FACTOR, LATER = 0.9, 5.0, 20, 0.125
LARGEST_FACTOR = 10_000  # of the ratio of two rates: 977 Hz is exact, 359.9999 Hz becomes 360 Hz


@lru_cache(maxsize=16)
def low_pass(up: int, down: int) -> NDArray[np.float64]:
    """Kaiser-windowed sinc at `up` times the old rate: passes up to 0.9 of the lower Nyquist frequency, reads later."""
    half, larger = TAPS_PER_FACTOR * max(up, down), max(up, down)
    place = np.arange(-half, half + 1)
    taps = np.sinc(PASSED / larger * (place + LATER * down)) * np.kaiser(2 * half + 1, KAISER)
    return taps / taps.sum()


def resample(signal: NDArray[np.float64], rate: float, wanted: int) -> NDArray[np.float64]:
    """To 100 Hz as the publisher went there, by a polyphase filter with ends continued as a line; else as usual."""
    from scipy.signal import resample_poly  # only where rates differ

    if wanted != 100:
        return preparation.resample(signal, rate, wanted)
    ratio = Fraction(wanted / rate).limit_denominator(LARGEST_FACTOR)
    up, down = ratio.numerator, ratio.denominator
    return resample_poly(signal, up, down, axis=0, window=low_pass(up, down), padtype="line")


DATASET = Dataset(
    url="https://physionet.org/files/ptb-xl/1.0.3/",
    files=files,
    select=select,
    seen=SEEN,
    unseen=UNSEEN,
    resample=resample,
)
