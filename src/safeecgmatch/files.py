"""Reading files, and writing them so that nobody ever meets half of one."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from safeecgmatch.errors import DamagedFile, UserError


@contextmanager
def atomic_path(target: Path, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `target`; rename it to `target` on success, remove it on any exception.

    Works for a file and for a folder alike: create either at the yielded path. `durable`: all bytes are on the disk
    before the rename, so that not even a power cut leaves a name without its content.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(target)
    scratch = Path(tempfile.mkdtemp(prefix=f"{_prefix(target)}{os.getpid()}.", dir=target.parent))
    try:
        partial = scratch / target.name
        yield partial
        if target.is_dir() and partial.is_dir():
            target.replace(scratch / "replaced")
        if durable:
            _flush(partial)
        partial.replace(target)
        if durable:
            _sync(target.parent)
    finally:
        shutil.rmtree(scratch)


def _prefix(target: Path) -> str:
    return f".{target.name}.{platform.node()}."


def _remove_leftovers(target: Path) -> None:
    """What killed processes of this machine left beside `target`."""
    for folder in target.parent.glob(f"{_prefix(target)}*.*"):
        number = folder.name.removeprefix(_prefix(target)).partition(".")[0]
        if number.isdigit() and not _is_alive(int(number)):
            shutil.rmtree(folder, ignore_errors=True)  # another process may be removing it too


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's
    return True


def _flush(path: Path) -> None:
    for inner in path.rglob("*") if path.is_dir() else ():
        _sync(inner)
    _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(target: Path, text: str) -> None:
    with atomic_path(target) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(target: Path, content: Any) -> None:
    write_text(target, json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n")


def read_json(source: Path) -> dict[str, Any]:
    try:
        content = json.loads(source.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DamagedFile(source, error) from error
    if not isinstance(content, dict):
        raise DamagedFile(source, "it holds no object")
    return content


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
        return parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; run `safeecgmatch profile demo` in the project's folder.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from None
    except (YAMLError, ValueError) as error:  # a value may look like a date and be none
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None


def parse_yaml(text: str) -> Any:
    """YAML 1.2, as DVC reads it: 010 is ten, a key that comes twice is an error."""
    return YAML(typ="safe").load(text)


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
