"""Imported once by multiprocessing's fork server, from which cells are forked: 0.1 instead of 2.5 seconds each.

Starts no thread and touches no GPU: a fork would survive neither.
"""

from __future__ import annotations

from importlib import import_module

from safeecgmatch.startup import quick_imports

with quick_imports():  # whose freeze also keeps the memory of these modules shared by all forked cells
    import safeecgmatch.launching.local
    import safeecgmatch.launching.train_cell  # noqa: F401
    from safeecgmatch.engine.fingerprint import code_of
    from safeecgmatch.protocols import known_methods, method_module

    for method in known_methods():
        import_module(method_module(method))
        code_of(method)  # keeps what it has read
