"""What DVC says about stages, and what it is asked to do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from safeecgmatch.errors import UserError
from safeecgmatch.launching.adoption import UPLOAD

DVC = (sys.executable, "-m", "dvc", "--wait-for-lock")  # without it a second DVC process gives up at once


def environment() -> dict[str, str]:
    """Stages say `python`; that must be the one that runs this, also where its environment is not activated."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, "PATH": path, UPLOAD: "0"}


def reproduce(*arguments: str) -> None:
    done = subprocess.run([*DVC, "repro", *arguments], env=environment(), check=False)
    if done.returncode != 0:
        named = " ".join(["repro", *arguments[:3], *(["..."] if len(arguments) > 3 else [])])
        raise UserError(f"`dvc {named}` failed; its messages are above.")


def take_over(stages: Iterable[str]) -> None:
    """Have DVC run the stages of cells, as `dvc repro` does, but write dvc.lock once.

    After every stage `dvc repro` reads and writes the whole of dvc.lock, which takes most of a second with 100 cells.
    A stage that was run and then not written down, because of an interrupt, is in DVC's cache of runs.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo, lock_repo

    wanted, ran = set(stages), []
    try:
        with Repo() as repo, lock_repo(repo):
            try:
                for stage in repo.index.stages:
                    if stage.addressing in wanted and stage.reproduce(run_env=environment()):
                        ran.append(stage)
            finally:
                if ran:
                    ran[0].dvcfile.dump_stages(ran, update_pipeline=False)
    except DvcException as error:
        raise UserError(f"DVC did not take over all cells: {' '.join(str(error).split())}") from None


def stale_stages(stages: Iterable[str]) -> dict[str, bool]:
    """Those of `stages` that are out of date, and whether DVC's cache of former runs can restore them."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo, lock_repo
    from dvc.stage.cache import RunCacheNotFoundError

    stale = {}
    try:
        with Repo() as repo, lock_repo(repo):
            asked = set(repo.status()).intersection(stages)
            for stage in repo.index.stages:  # to look one up by its name reads dvc.lock again
                if stage.addressing not in asked:
                    continue
                try:
                    repo.stage_cache.restore(stage)
                    stale[stage.addressing] = True
                except RunCacheNotFoundError:
                    stale[stage.addressing] = False
    except DvcException as error:
        raise UserError(f"DVC does not tell what is out of date: {' '.join(str(error).split())}") from None
    return stale
