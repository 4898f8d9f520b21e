"""What the stages ask about a dataset. `datasets/<name>.py` answers, and nothing else knows a dataset by its name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safeecgmatch.data.preparation import Preparation, Resample, resample
from safeecgmatch.data.readers import Archive
from safeecgmatch.data.selection import Verdicts

HEADER_BYTES = 700
Switches = Mapping[str, Any]


@dataclass(frozen=True)
class Files:
    """The files of the published archive that later stages read: WFDB records below one folder, and tables.

    The sizes, in bytes, serve the disk check and the progress bar before a server has given the true ones.
    """

    folder: str
    suffix: str  # of the signal files
    signal_bytes: int
    tables: Mapping[str, int] = field(default_factory=dict)

    @property
    def pattern(self) -> re.Pattern[str]:
        records = rf"{self.folder}/.+\.(?:hea|{self.suffix})"
        return re.compile("|".join([*map(re.escape, self.tables), records]))

    def estimate(self, name: str) -> int:
        return self.tables.get(name) or (HEADER_BYTES if name.endswith(".hea") else self.signal_bytes)

    def lacking(self, names: Iterable[str]) -> str | None:
        """The first thing without which an archive is the wrong one, or a folder too high or too low."""
        present = set(names)
        missing = [table for table in self.tables if table not in present]
        if not any(name.startswith(f"{self.folder}/") and name.endswith(".hea") for name in present):
            missing.append(f"{self.folder}/….hea")
        return missing[0] if missing else None

    def present_in(self, folder: Path) -> list[str]:
        """The needed files that are there, by relative name, sorted."""
        prefix = len(str(folder)) + 1
        found = (f"{place}/{file}"[prefix:] for place, _, files in os.walk(folder) for file in files)
        return sorted(filter(self.pattern.fullmatch, found))


@dataclass(frozen=True)
class OpenSet:
    """Seen and unseen classes, and which rule of `split_draws` fills the pool."""

    seen: tuple[str, ...]
    unseen: tuple[str, ...]
    rule: str = "fixed_volume"


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """`files` and `select` are asked for a sampling rate; `select` judges the records of an archive.

    `resample` is for datasets whose publisher went from one rate to another in a way of its own. The last two are for
    datasets whose protocols differ: which preprocessing the switches ask for, and which other task they set at an OOD
    level (None: the usual one).
    """

    url: str  # the folder of the published files, with SHA256SUMS.txt
    files: Callable[[int], Files]
    select: Callable[[Archive, int], Verdicts]
    seen: tuple[str, ...]
    unseen: tuple[str, ...]
    resample: Resample = resample
    preprocessing: Callable[[Switches], str] = lambda switches: "none"
    other_task: Callable[[int, Switches], OpenSet | None] = lambda ood, switches: None

    def preparation(self, sampling_rate: int, preprocessing: str) -> Preparation:
        return Preparation(sampling_rate, preprocessing, self.resample)

    def open_set(self, ood: int, switches: Switches) -> OpenSet:
        return self.other_task(ood, switches) or OpenSet(self.seen, self.unseen)
