"""The one exception whose cause a user can fix, and how a program ends with its sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UserError(Exception):
    """Something the user can put right; the message is one sentence that says what, where and what to do.

    Stages and the command line print it without a traceback and exit with status 1.
    """


class DamagedFile(UserError, ValueError):
    """A file of ours that was cut or edited."""

    def __init__(self, file: Path, reason: object) -> None:
        super().__init__(f"{file} is damaged ({reason}): `dvc checkout` brings it back, or run again what wrote it.")


@contextmanager
def one_sentence(prefix: str = "") -> Iterator[None]:
    """For the outermost function of a program: what the user can put right, a full disk too, ends it."""
    try:
        yield
    except UserError as error:
        sys.exit(f"{prefix}{error}")
    except OSError as error:
        if error.strerror is None:  # of a library, not of the system
            raise
        what = f"{error.filename} cannot be read or written" if error.filename else "A file cannot be written"
        sys.exit(f"{prefix}{what} ({error.strerror}).")
