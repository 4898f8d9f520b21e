"""Records that a dataset's labels select, and records that are dropped, each with a reason from one list."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from safeecgmatch.engine.signal_store import Entry

MULTI_LABEL = "multi-label"
NO_LABEL = "no label"
UNREADABLE = "unreadable"
WRONG_LEADS = "wrong lead count"
TOO_SHORT = "too short"
ZERO_LEAD = "all-zero lead"
FLAT_LEAD = "flat lead"
INVALID = "NaN or invalid samples"
IMPLAUSIBLE = "implausible amplitudes"
DUPLICATE = "duplicate id"
UNSAFE = "unsafe name"
REASONS = (
    MULTI_LABEL, NO_LABEL, UNREADABLE, WRONG_LEADS, TOO_SHORT, ZERO_LEAD, FLAT_LEAD, INVALID, IMPLAUSIBLE, DUPLICATE,
    UNSAFE,
)  # fmt: skip

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


@dataclass(frozen=True)
class Candidate:
    """A single-label record; `header` is the path of its `.hea` file below the archive's folder."""

    record: str
    header: str
    label: str
    source: str
    patient: str = ""
    fold: str = ""

    def entry(self, length: int) -> Entry:
        return Entry(self.record, self.patient, self.label, self.source, self.fold, length)


@dataclass(frozen=True)
class Drop:
    record: str
    reason: str
    detail: str = ""


@dataclass(frozen=True)
class Verdicts:
    """`candidates` in the order of the rows to come."""

    candidates: list[Candidate]
    dropped: list[Drop]
    warnings: list[str]

    @classmethod
    def of(cls, judged: Sequence[Candidate | Drop]) -> Verdicts:
        candidates = [verdict for verdict in judged if isinstance(verdict, Candidate)]
        return cls(candidates, [verdict for verdict in judged if isinstance(verdict, Drop)], [])


def is_safe(path: str) -> bool:
    """Whether a path from a table stays below the folder it is joined to: plain names between single slashes."""
    return all(_PART.fullmatch(part) for part in path.split("/"))
