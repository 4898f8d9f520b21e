"""Phantom archives on disk, in the layout of the published ones: what all datasets have in common.

`phantom/<dataset>.py` knows one layout and ends in `POPULATION` and `write_records`. Nothing here depends on clock,
locale or host: the same arguments give the same bytes.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from safeecgmatch.data.inventory import SUMS
from safeecgmatch.data.phantom.patients import Cohort, Subject
from safeecgmatch.data.readers import INVALID
from safeecgmatch.errors import UserError
from safeecgmatch.files import atomic_path
from safeecgmatch.progress import Progress

Signal = NDArray[np.int16]

MARK = "PHANTOM.txt"
DAMAGES = ("truncated", "missing", "invalid_samples", "flat_lead", "eleven_leads", "garbage_header")


def layout_of(dataset: str) -> ModuleType:
    if not Path(__file__).with_name(f"{dataset}.py").is_file():
        raise UserError(f"There is no generator of {dataset}: set data.{dataset}.source to physionet or path.")
    return import_module(f"safeecgmatch.data.phantom.{dataset}")


def mark_of(dataset: str, records: int, seed: int, sampling_rate: int) -> str:
    """What a generated archive says of itself; the digest is of the generator's own files."""
    sources = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
    made = f"{records} records, seed {seed}, {sampling_rate} Hz, generator {hashlib.sha256(sources).hexdigest()[:16]}"
    return f"Generated signals, no patients: {dataset}, {made}.\n"


def is_of(folder: Path, dataset: str, records: int, seed: int, sampling_rate: int) -> bool:
    mark = folder / MARK
    return mark.is_file() and mark.read_text(encoding="utf-8") == mark_of(dataset, records, seed, sampling_rate)


def write_archive(dataset: str, folder: Path, records: int, seed: int, sampling_rate: int) -> None:
    """Make `folder` a phantom archive of `dataset`; an earlier phantom there is replaced, anything else is refused."""
    layout = layout_of(dataset)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARK).is_file():
        raise UserError(
            f"{folder} holds files that are not a generated archive, so the phantom is not written over them; "
            "move them away or choose another data folder."
        )
    with atomic_path(folder) as partial:
        partial.mkdir()
        tree = Tree(partial)
        tree.put(MARK, mark_of(dataset, records, seed, sampling_rate))
        cohort = Cohort(layout.POPULATION, seed)
        with Progress(records, f"phantom {dataset}", "records") as progress:
            layout.write_records(tree, cohort, cohort.roster(records), sampling_rate, progress)
        tree.finish()


def damaged(subjects: Sequence[Subject]) -> dict[int, str]:
    """Which records are damaged and how: spread over the archive, only records of a single class."""
    whole = [subject.number for subject in subjects if len(subject.classes) == 1]
    step = max(1, len(whole) // len(DAMAGES))
    return dict(zip(whole[step // 2 :: step], DAMAGES, strict=False))


class Tree:
    """A folder that remembers the SHA-256 of everything put into it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sums: dict[str, str] = {}

    def put(self, name: str, content: str | bytes) -> None:
        data = content.encode() if isinstance(content, str) else content
        path = self.root / name
        try:
            path.write_bytes(data)
        except FileNotFoundError:
            path.parent.mkdir(parents=True)
            path.write_bytes(data)
        self.sums[name] = hashlib.sha256(data).hexdigest()

    def put_lines(self, name: str, lines: Iterable[str]) -> None:
        self.put(name, "".join(f"{line}\n" for line in lines))

    def put_table(self, name: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
        self.put(name, text.getvalue())

    def put_record(self, stem: str, header: list[str], suffix: str, data: bytes, damage: str | None) -> None:
        """Header and signal file; the damages that lie in the files rather than in the samples happen here."""
        if damage == "garbage_header":
            header = ["\x00\x17 this is not a header", *header[5:]]
        self.put_lines(f"{stem}.hea", header)
        if damage == "truncated":
            data = data[: len(data) * 2 // 5]
        if damage != "missing":
            self.put(f"{stem}{suffix}", data)

    def finish(self) -> None:
        lines = [f"{digest} {name}\n" for name, digest in sorted(self.sums.items())]
        (self.root / SUMS).write_bytes("".join(lines).encode())


def damage_samples(signal: Signal, damage: str | None) -> Signal:
    if damage == "eleven_leads":
        return signal[:11]
    if damage in ("invalid_samples", "flat_lead"):
        signal = signal.copy()
        if damage == "flat_lead":
            signal[8] = 0
        else:
            signal[6:9, signal.shape[1] // 3 :] = INVALID
    return signal


def first_and_sum(signal: Signal) -> list[tuple[int, int]]:
    """First value and 16-bit checksum (0..65535) of each lead."""
    sums = signal.sum(axis=1, dtype=np.int64) & 0xFFFF
    return list(zip(signal[:, 0].tolist(), sums.tolist(), strict=True))


def draw_age(rng: np.random.Generator) -> int | None:
    """As PTB-XL gives an age: 300 means more than 89, a few are unknown."""
    age = int(np.clip(rng.normal(60.0, 17.0), 18, 95))
    if rng.random() < 0.01:
        return None
    return 300 if age > 89 else age
