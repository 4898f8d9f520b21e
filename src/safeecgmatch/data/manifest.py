"""Where an archive lies and the list of its verified files: what `download` promises and the next stage checks."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from safeecgmatch.data.inventory import ListedFile, safe_name
from safeecgmatch.data.readers import Archive
from safeecgmatch.errors import UserError
from safeecgmatch.files import atomic_path, project_root

COLUMNS = ["file", "size", "sha256"]
FOLDER = "# folder: "


@dataclass(frozen=True)
class Manifest:
    """`folder` is below the project's where the archive is, so that a project can be moved with it; else absolute."""

    folder: str
    files: tuple[ListedFile, ...]

    @classmethod
    def of(cls, folder: Path, files: Iterable[ListedFile]) -> Manifest:
        own = folder.is_relative_to(project_root())
        return cls(str(folder.relative_to(project_root()) if own else folder), tuple(sorted(files)))

    @property
    def place(self) -> Path:
        return project_root() / self.folder


def manifest_of(dataset: str) -> Path:
    return Path("data/manifests") / f"{dataset}.csv"


def write_manifest(manifest: Path, content: Manifest) -> None:
    with atomic_path(manifest) as partial, partial.open("w", newline="", encoding="utf-8") as stream:
        stream.write(f"{FOLDER}{content.folder}\n")
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(content.files)


def read_manifest(manifest: Path) -> Manifest:
    command = f"dvc repro -f download@{manifest.stem}"
    if not manifest.is_file():
        raise UserError(f"{manifest} does not exist: run `{command}`.")
    with manifest.open(newline="", encoding="utf-8", errors="replace") as stream:  # a damaged name names no file
        folder, rows = stream.readline().rstrip("\n"), list(csv.reader(stream))
    whole = folder.startswith(FOLDER) and rows[:1] == [COLUMNS]
    if not whole or any(len(row) != 3 or not row[1].isdecimal() for row in rows[1:]):
        raise UserError(f"{manifest} is not a manifest with a folder and {','.join(COLUMNS)}: run `{command}`.")
    files = (ListedFile(safe_name(file, str(manifest)), int(size), sha256) for file, size, sha256 in rows[1:])
    return Manifest(folder.removeprefix(FOLDER), tuple(files))


def open_archive(manifest: Path) -> Archive:
    """The manifest's archive, after a look at every file's size: digests are compared when a file is read."""
    content = read_manifest(manifest)
    command = f"run `dvc repro -f download@{manifest.stem}`"
    for entry in content.files:
        file = content.place / entry.file
        try:
            size = file.stat().st_size
        except OSError as fault:
            raise UserError(f"{file} is missing ({fault.strerror}): {command}.") from fault
        if size != entry.size:
            raise UserError(f"{file} has {size} bytes instead of {entry.size}: {command}.")
    return Archive(content.place, {entry.file: entry.sha256 for entry in content.files}, manifest.stem)
