"""What DVC says about stages, and what it is asked to do."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from safeecgmatch.errors import UserError
from safeecgmatch.launching.adoption import UPLOAD

if TYPE_CHECKING:
    from dvc.repo import Repo


def environment() -> dict[str, str]:
    """Stages say `python`; that must be the one that runs this, also where its environment is not activated."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, "PATH": path, UPLOAD: "0"}


@contextmanager
def asking_dvc(to_do_what: str) -> Iterator[Repo]:
    """The project as DVC sees it, for this process alone; waits for another DVC process instead of giving up."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo, lock_repo

    try:
        with Repo(_wait_for_lock=True) as repo, lock_repo(repo):
            yield repo
    except DvcException as error:
        raise UserError(f"DVC does not {to_do_what}: {' '.join(str(error).split())}") from None


def reproduce(targets: Collection[str] = ()) -> None:
    """What `dvc repro` does with these stages (or groups, or all) and what they need, but dvc.lock is written once.

    After every stage `dvc repro` reads and writes the whole of dvc.lock, which takes most of a second with 100 cells.
    A stage that was run and then not written down, because its process was killed, is in DVC's cache of runs.
    """
    from dvc.repo.reproduce import get_active_graph, plan_repro

    with asking_dvc("run all stages") as repo:
        names = {stage: {stage.addressing, stage.addressing.partition("@")[0]} for stage in repo.index.stages}
        wanted = [stage for stage in names if not targets or not names[stage].isdisjoint(targets)]
        ran = []
        try:
            for stage in plan_repro(get_active_graph(repo.index.graph), wanted):
                if stage.reproduce(run_env=environment()):
                    ran.append(stage)
        finally:
            if ran:
                ran[0].dvcfile.dump_stages(ran, update_pipeline=False)


def stale_stages(stages: Iterable[str]) -> dict[str, bool]:
    """Those of `stages` that are out of date, and whether DVC's cache of former runs can restore them."""
    from dvc.stage.cache import RunCacheNotFoundError

    stale = {}
    with asking_dvc("tell what is out of date") as repo:
        asked = set(repo.status()).intersection(stages)
        for stage in repo.index.stages:  # to look one up by its name reads dvc.lock again
            if stage.addressing not in asked:
                continue
            try:
                repo.stage_cache.restore(stage)
                stale[stage.addressing] = True
            except RunCacheNotFoundError:
                stale[stage.addressing] = False
    return stale
