"""Imports of large libraries without Python's search for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """What is imported here stays to the end, so Python need not look for garbage among it, now or ever.

    torch and mlflow make a million objects: the search takes a third of the time of their import, and more than a
    second when the process ends.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
