"""From what the command line names (records, folders, zips) to headers, each with the name that its answer carries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from safeecgmatch.data.inventory import printable
from safeecgmatch.data.unzip import extract
from safeecgmatch.errors import UserError

HEADER = ".hea"
ANY_FILE = re.compile(r".+")
Labels = Callable[[Path], dict[str, str]]  # the classes of an archive's records, by the paths of their headers


@dataclass(frozen=True)
class Question:
    """One record to read; `label` is its class where that is known, `error` says why there is nothing to read."""

    title: str
    header: Path
    label: str = ""
    error: str = ""


@contextmanager
def asked(arguments: Sequence[str], labels: Labels | None = None) -> Iterator[list[Question]]:
    """All records that the arguments name; what was unpacked from zips is removed in the end."""
    with ExitStack() as stack:
        yield [question for argument in arguments for question in questions_in(argument, labels, stack)]


def questions_in(argument: str, labels: Labels | None, stack: ExitStack) -> Iterator[Question]:
    path, name = Path(argument), printable(argument.rstrip("/"))
    if path.suffix.lower() == ".zip" and path.is_file():
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="safeecgmatch-")))
        extract(path, folder, ANY_FILE, f"unpack {printable(path.name)}")
        path = folder
    if path.is_dir():
        headers = labels(path) if labels else dict.fromkeys(headers_below(path), "")
        if not headers:
            yield Question(name, path, error="it holds no WFDB record (no .hea file)")
        for header, label in headers.items():
            yield Question(printable(f"{name}/{header.removesuffix(HEADER)}"), path / header, label)
    elif labels:
        raise UserError(f"--labels needs a whole archive as folder or zip, and {name} is one record.")
    else:
        record = path.with_suffix("") if path.suffix in (HEADER, ".dat", ".mat") else path
        yield Question(printable(str(record)), record.with_name(record.name + HEADER))


def headers_below(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob(f"*{HEADER}"))
