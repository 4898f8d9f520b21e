"""Reading files, and writing them so that nobody ever meets half of one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from safeecgmatch.errors import UserError

SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one where PyYAML was built with it: 10 x faster


@contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; rename it to `target` on success, remove it on any exception.

    Works for a file and for a folder alike: create either at the yielded path.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        partial = scratch / target.name
        yield partial
        if target.is_dir() and partial.is_dir():
            target.replace(scratch / "replaced")
        partial.replace(target)
    finally:
        shutil.rmtree(scratch)


def write_text(target: Path, text: str) -> None:
    with atomic_path(target) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(target: Path, content: Any) -> None:
    write_text(target, json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n")


def read_json(source: Path) -> Any:
    return json.loads(source.read_text(encoding="utf-8"))


def digest_of(source: Path, algorithm: str) -> str:
    with source.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()


def sha256_of(source: Path) -> str:
    return digest_of(source, "sha256")


def project_root() -> Path:
    """The folder that outlives an experiment's temporary workspace: DVC's root, else the current folder."""
    return Path(os.environ.get("DVC_ROOT") or Path.cwd()).resolve()


def read_yaml(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=SafeLoader)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; run `safeecgmatch profile demo` in the project's folder.") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None


def hash_of(content: Any) -> str:
    """A short hash of plain content. A whole number hashes alike as `3` and as `3.0`: params.yaml may hold either."""
    text = json.dumps(_whole_as_int(content), sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _whole_as_int(content: Any) -> Any:
    if isinstance(content, float) and content.is_integer():
        return int(content)
    if isinstance(content, dict):
        return {key: _whole_as_int(value) for key, value in content.items()}
    return [_whole_as_int(value) for value in content] if isinstance(content, list | tuple) else content
