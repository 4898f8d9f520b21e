"""What is trained: a copy of params, src and stages, so that editing the tree while cells wait changes nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

from safeecgmatch.files import atomic_path, hash_of, read_json, sha256_of, write_json
from safeecgmatch.launching.scratch import scratch_root
from safeecgmatch.tracking.record import git_state

CONTENT = ("params.yaml", "src", "stages")
ORIGIN = "origin.json"


def take(root: Path) -> Path:
    """The snapshot of the project in `root`, below scratch/snapshots and named by its content."""
    files = sorted(file for name in CONTENT for file in [root / name, *(root / name).rglob("*")] if wanted(file))
    commit, dirty = git_state(root)
    names = {file.relative_to(root).as_posix(): sha256_of(file) for file in files}
    folder = scratch_root() / "snapshots" / hash_of([names, commit, dirty])
    if not folder.is_dir():
        with atomic_path(folder) as partial:
            for name in names:
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(root / name, partial / name)
            write_json(partial / ORIGIN, {"commit": commit, "dirty": dirty})
    return folder


def wanted(file: Path) -> bool:
    return file.is_file() and "__pycache__" not in file.parts and not any(p.endswith(".egg-info") for p in file.parts)


def origin(folder: Path) -> tuple[str, bool]:
    """The Git state of `folder`; of a snapshot, that of the project that it was taken from."""
    if not (folder / ORIGIN).exists():
        return git_state(folder)
    stored = read_json(folder / ORIGIN)
    return stored["commit"], stored["dirty"]
