"""What an archive holds: safe names, the files a profile needs, published checksums, sizes, free disk space."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from safeecgmatch.errors import UserError
from safeecgmatch.files import sha256_of
from safeecgmatch.progress import Progress

SUMS = "SHA256SUMS.txt"
HASH_THREADS, HASH_BATCH = 4, 256
DISK_BLOCK = 4096

# Bytes per file, for the disk check and the progress bar before the first answer: PTB-XL signals are 12 leads x 10 s
# x 2 bytes; Challenge 2021 is about 13.5 GB in 88,253 signal files (most of 10 s, some of 30 minutes).
ESTIMATES = (
    (re.compile(r"records100/.+\.dat"), 24_000),
    (re.compile(r"records500/.+\.dat"), 120_000),
    (re.compile(r".+\.mat"), 155_000),
    (re.compile(r".+\.hea"), 700),
    (re.compile(r"ptbxl_database\.csv"), 7_000_000),
)
OTHER_ESTIMATE = 10_000


class Entry(NamedTuple):
    """One line of a manifest; `file` is relative to the archive's folder."""

    file: str
    size: int
    sha256: str


def safe_name(name: str, source: str) -> str:
    """The name as a plain relative path; anything that could lead out of the data folder is refused."""
    parts = name.split("/")
    harmless = name and not name.startswith("/") and ".." not in parts and name.isprintable()
    if not harmless or "\\" in name or re.match(r"[A-Za-z]:", name):
        raise UserError(f"{source} names the file {name!r}, which could lie outside the data folder: it is refused.")
    return "/".join(part for part in parts if part not in ("", "."))


def target_inside(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """Where each file goes; refuses a subfolder that is a link to somewhere outside."""
    root, checked = folder.resolve(), set()
    targets = {name: folder / name for name in names}
    for target in targets.values():
        if target.parent not in checked and not target.parent.resolve().is_relative_to(root):
            raise UserError(f"{target.parent} leads outside {folder}: remove that link.")
        checked.add(target.parent)
    return targets


def needed_files(dataset: str, sampling_rate: int) -> re.Pattern[str]:
    """The files that later stages read: PTB-XL at 100 Hz has its own copy, every other rate is made from 500 Hz."""
    if dataset == "ptbxl":
        rate = 100 if sampling_rate == 100 else 500
        return re.compile(rf"ptbxl_database\.csv|scp_statements\.csv|records{rate}/.+\.(?:hea|dat)")
    if dataset == "cinc21":
        return re.compile(r"training/.+\.(?:hea|mat)")
    raise UserError(f"there is no dataset {dataset!r}: use ptbxl or cinc21.")


def require_layout(dataset: str, names: Iterable[str], sampling_rate: int, place: str) -> None:
    """Say early that an archive is the wrong one, or a folder too high or too low."""
    present = set(names)
    tables = ("ptbxl_database.csv", "scp_statements.csv") if dataset == "ptbxl" else ()
    missing = [table for table in tables if table not in present]
    records = "training/" if dataset == "cinc21" else f"records{100 if sampling_rate == 100 else 500}/"
    if not any(name.startswith(records) and name.endswith(".hea") for name in present):
        missing.append(f"{records}….hea")
    if missing:
        raise UserError(f"{place} has no {missing[0]}: it must have the layout of the PhysioNet release of {dataset}.")


def read_sums(source: Path, place: str) -> dict[str, str]:
    """Parse `<sha256> <relative path>` lines (one or two blanks, or the ` *` of binary mode)."""
    sums: dict[str, str] = {}
    for number, line in enumerate(source.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        found = re.fullmatch(r"([0-9a-fA-F]{64}) [ *]?(.+)", line)
        if not found:
            raise UserError(f"{place}, line {number} is not '<sha256> <path>': the file is damaged, fetch it again.")
        sums[safe_name(found[2], place)] = found[1].lower()
    return sums


def estimated_size(name: str) -> int:
    return next((size for pattern, size in ESTIMATES if pattern.fullmatch(name)), OTHER_ESTIMATE)


def on_disk(sizes: Iterable[int]) -> int:
    """Small files fill whole blocks; headers of 700 bytes take 4 KiB each."""
    return sum(-(-size // DISK_BLOCK) * DISK_BLOCK for size in sizes)


def human(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def require_space(folder: Path, size: int, what: str) -> None:
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(existing).free
    if size > free:
        raise UserError(
            f"{what} needs about {human(size)} in {folder}, but only {human(free)} are free: "
            "free some space or set SAFEECGMATCH_DATA to a folder on a larger disk."
        )


def walk(folder: Path, wanted: re.Pattern[str]) -> list[str]:
    """The needed files that are there, by relative name, sorted."""
    prefix = len(str(folder)) + 1
    return sorted(
        name
        for place, _, files in os.walk(folder)
        for file in files
        if wanted.fullmatch(name := f"{place}/{file}"[prefix:])
    )


def entry_of(folder: Path, name: str) -> Entry | None:
    """Size and checksum; small files are read in one go, which is several times faster than in blocks."""
    path = folder / name
    try:
        size = path.stat().st_size
        return Entry(name, size, hashlib.sha256(path.read_bytes()).hexdigest() if size < 1 << 20 else sha256_of(path))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as fault:
        raise UserError(f"{path} cannot be read: {fault.strerror}.") from fault


def measure(folder: Path, names: Sequence[str], label: str) -> dict[str, Entry]:
    """Size and checksum of every file that is there."""

    def some(start: int) -> list[Entry]:
        return [entry for name in names[start : start + HASH_BATCH] if (entry := entry_of(folder, name))]

    found: dict[str, Entry] = {}
    if not names:
        return found
    with Progress(len(names), label, "files") as bar, ThreadPoolExecutor(HASH_THREADS) as pool:
        for entries in pool.map(some, range(0, len(names), HASH_BATCH)):
            bar.advance(len(entries))
            found.update((entry.file, entry) for entry in entries)
    return found
