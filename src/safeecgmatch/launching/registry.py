"""The launchers by name; a module is imported when it is asked for, so that its extra is needed only then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec

from safeecgmatch.errors import UserError
from safeecgmatch.launching.board import Board
from safeecgmatch.launching.cluster import Cluster
from safeecgmatch.launching.jobs import Failure, Job, Means

Launcher = Callable[[Sequence[Job], Board, Means], list[Failure]]
LAUNCHERS = {name: f"safeecgmatch.launching.{name}" for name in ("local", "slurm", "dask")}


def launcher(name: str) -> Launcher:
    """The function `launch` of the launcher's module."""
    if name not in LAUNCHERS:
        raise UserError(f"There is no launcher '{name}'; those that exist are {', '.join(LAUNCHERS)}.")
    return import_module(LAUNCHERS[name]).launch


def check(name: str, cluster: Cluster) -> None:
    """One sentence, before anything else is done, where this launcher cannot work here."""
    import_module(LAUNCHERS[name]).check(cluster)


def need(package: str, extra: str) -> None:
    """One sentence where a launcher's package is not installed."""
    if find_spec(package) is None:
        how = f"pip install -c constraints.txt -e '.[{extra}]'"
        raise UserError(f"--on {extra} needs the package {package}; install it with: {how}")
