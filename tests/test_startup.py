"""Imports without a search for garbage."""

from __future__ import annotations

import gc

import pytest

from safeecgmatch.startup import quick_imports


def test_what_is_imported_is_searched_for_garbage_neither_then_nor_later() -> None:
    before = gc.get_freeze_count()
    with pytest.raises(ImportError), quick_imports():
        assert not gc.isenabled()
        kept = [[] for _ in range(1000)]
        raise ImportError
    assert gc.isenabled() and gc.get_freeze_count() >= before + len(kept)
    gc.unfreeze()
