"""What an archive holds: safe names, published checksums, sizes, free disk space."""

from __future__ import annotations

import hashlib
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


class ListedFile(NamedTuple):
    """One line of a manifest; `file` is relative to the archive's folder."""

    file: str
    size: int
    sha256: str


def printable(text: str) -> str:
    """The text with control characters spelled out: a name from a header or a zip must not command a terminal."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


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


def listed_file(folder: Path, name: str) -> ListedFile | None:
    """Size and checksum; small files are read in one go, which is several times faster than in blocks."""
    path = folder / name
    try:
        size = path.stat().st_size
        return ListedFile(
            name, size, hashlib.sha256(path.read_bytes()).hexdigest() if size < 1 << 20 else sha256_of(path)
        )
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as fault:
        raise UserError(f"{path} cannot be read: {fault.strerror}.") from fault


def measure(folder: Path, names: Sequence[str], label: str) -> dict[str, ListedFile]:
    """Size and checksum of every file that is there."""

    def some(start: int) -> list[ListedFile]:
        return [entry for name in names[start : start + HASH_BATCH] if (entry := listed_file(folder, name))]

    found: dict[str, ListedFile] = {}
    if not names:
        return found
    with Progress(len(names), label, "files") as bar, ThreadPoolExecutor(HASH_THREADS) as pool:
        for entries in pool.map(some, range(0, len(names), HASH_BATCH)):
            bar.advance(len(entries))
            found.update((entry.file, entry) for entry in entries)
    return found
