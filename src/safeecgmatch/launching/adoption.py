"""From scratch/ to runs/ and tracking/: a finished cell is taken over if it is exactly the one that is wanted.

Runs inside DVC's own stage, so DVC records what it ran. The finished result stays in scratch: `safeecgmatch run`
removes it when DVC has recorded the cell, which the stage itself cannot know. Imports neither torch nor mlflow.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safeecgmatch.cells import Cell
from safeecgmatch.config import Params
from safeecgmatch.engine.fingerprint import code_of, resolve
from safeecgmatch.files import atomic_path, read_json, read_yaml, write_json
from safeecgmatch.launching.scratch import Scratch, scratch_root
from safeecgmatch.tracking.record import flat

NO_PARAMS = ("config_hash", "fingerprint", "in_force")  # what follows from the rest
LONGEST_LIST = 3
TAKE_OVER_ONLY = "SAFEECGMATCH_TAKE_OVER_ONLY"  # environment variable; set by `safeecgmatch run`, which trains itself


def take_over_only() -> bool:
    """Whether `safeecgmatch run` started this stage: it has trained all cells, and tried to upload them."""
    return TAKE_OVER_ONLY in os.environ


def adopt(path: str, config: Mapping[str, Any], upload: bool = False) -> bool:
    """Whether a finished result of this very config was taken over; what else there is and is not used is told.

    With `upload`, one that was trained where MLflow could not be reached is sent there first.
    """
    scratch = Scratch.of(path, config["fingerprint"])
    if not scratch.verify():
        tell_of_others(scratch, config)
        return False
    if upload and not scratch.is_logged():
        from safeecgmatch.tracking.uploader import Following

        with Following() as uploader:
            uploader.follow(scratch)
    with atomic_path(Path("runs", path)) as partial:
        shutil.copytree(scratch.finished / "run", partial, copy_function=link_or_copy)
    known = read_json(scratch.mlflow) if scratch.mlflow.exists() else {"run_id": None, "logged": False}
    write_json(Path("tracking", path, "run.json"), read_json(scratch.finished / "run.json") | known)
    return True


def waiting(params: Params, cell: Cell) -> Path | None:
    """The finished result of this very cell that DVC has not taken over yet, if there is a good one."""
    if not (scratch_root() / cell.path).is_dir():
        return None
    scratch = Scratch.of(cell.path, resolve(params, cell)["fingerprint"])
    return scratch.finished if scratch.finished.is_dir() and not scratch.problem() else None


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


def tell_of_others(scratch: Scratch, config: Mapping[str, Any]) -> None:
    """What else was begun or finished for this cell, and why it is not used."""
    others = [Scratch(folder) for folder in scratch.folder.parent.glob("*") if folder != scratch.folder]
    begun = [other for other in others if other.finished.is_dir() or other.checkpoint.exists()]
    begun = [other for other in begun if other.config.exists() and other.record.exists()]
    if begun:
        newest = max(begun, key=lambda other: other.record.stat().st_mtime_ns)
        what = "a finished result" if newest.finished.is_dir() else "a checkpoint"
        print(f"{newest.folder} holds {what} of {difference(newest, config)}; it is not used.", flush=True)


def difference(other: Scratch, config: Mapping[str, Any]) -> str:
    """Which of params, code and data differ, with the first keys and modules that do."""
    old, new = (
        flat({key: value for key, value in content.items() if key not in NO_PARAMS})
        for content in (read_yaml(other.config), config)
    )
    keys = differing(old, new)
    params = [key for key in keys if not key.startswith("data.")]
    modules = differing(read_json(other.record)["code"], code_of(config["module"]))
    values = [f"{key} is {old.get(key, 'absent')}, wanted {new.get(key, 'absent')}" for key in params]
    parts = [f"other params ({short(values)})"] if params else []
    parts += ["other data"] if len(params) < len(keys) else []
    parts += [f"other code ({short(modules)})"] if modules else []
    return " and ".join(parts) or "another format"


def differing(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))


def short(items: list[str]) -> str:
    more = len(items) - LONGEST_LIST
    return "; ".join(items[:LONGEST_LIST]) + (f"; and {more} more" if more > 0 else "")
