"""The list of an archive's verified files: what `download` promises and the next stage checks."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from safeecgmatch.data.inventory import ListedFile, safe_name
from safeecgmatch.errors import UserError
from safeecgmatch.files import atomic_path

COLUMNS = ["file", "size", "sha256"]


def manifest_of(dataset: str) -> Path:
    return Path("data/manifests") / f"{dataset}.csv"


def write_manifest(manifest: Path, entries: Sequence[ListedFile]) -> None:
    with atomic_path(manifest) as partial, partial.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(sorted(entries))


def read_manifest(manifest: Path) -> list[ListedFile]:
    command = f"dvc repro -f download@{manifest.stem}"
    if not manifest.is_file():
        raise UserError(f"{manifest} does not exist: run `{command}`.")
    with manifest.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.reader(stream))
    if not rows or rows[0] != COLUMNS or any(len(row) != 3 or not row[1].isdigit() for row in rows[1:]):
        raise UserError(f"{manifest} is not a manifest with the columns {','.join(COLUMNS)}: run `{command}`.")
    return [ListedFile(safe_name(file, str(manifest)), int(size), sha256) for file, size, sha256 in rows[1:]]


def check_archive(manifest: Path, folder: Path) -> list[ListedFile]:
    """The manifest's entries, after a look at every file's size; used by the stage that reads the archive."""
    entries = read_manifest(manifest)
    command = f"run `dvc repro -f download@{manifest.stem}`"
    for entry in entries:
        try:
            size = (folder / entry.file).stat().st_size
        except OSError as fault:
            raise UserError(f"{folder / entry.file} is missing ({fault.strerror}): {command}.") from fault
        if size != entry.size:
            raise UserError(f"{folder / entry.file} has {size} bytes instead of {entry.size}: {command}.")
    return entries
