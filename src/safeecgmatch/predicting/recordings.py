"""From what the command line names (records, folders, zips) to headers, each with the name that its answer carries."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from safeecgmatch.data.inventory import printable
from safeecgmatch.data.unzip import extract

HEADER = ".hea"
ANY_FILE = re.compile(r".+")


@dataclass(frozen=True)
class Place:
    """One argument: a folder of records (a zip is unpacked to one), or a single record with its folder."""

    name: str
    folder: Path
    record: str | None = None  # of a single one

    def headers(self) -> list[str]:
        """Relative to the folder, sorted."""
        if self.record is not None:
            return [self.record + HEADER]
        prefix = len(str(self.folder)) + 1
        found = (f"{place}/{file}" for place, _, files in os.walk(self.folder) for file in files)
        return sorted(file[prefix:] for file in found if file.endswith(HEADER))

    def title(self, header: str) -> str:
        return self.name if self.record is not None else printable(f"{self.name}/{header.removesuffix(HEADER)}")


@contextmanager
def opened(arguments: Sequence[str]) -> Iterator[list[Place]]:
    """The places that the arguments name; what was unpacked from zips is removed in the end."""
    with ExitStack() as stack:
        places = []
        for argument in arguments:
            path = Path(argument)
            if path.is_dir():
                places.append(Place(printable(argument.rstrip("/")), path))
            elif path.suffix.lower() == ".zip" and path.is_file():
                folder = Path(stack.enter_context(TemporaryDirectory(prefix="safeecgmatch-")))
                extract(path, folder, ANY_FILE, f"unpack {printable(path.name)}")
                places.append(Place(printable(argument), folder))
            else:
                stem = path.with_suffix("") if path.suffix in (HEADER, ".dat", ".mat") else path
                places.append(Place(printable(str(stem)), stem.parent, stem.name))
        yield places
