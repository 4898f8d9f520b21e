"""Atomic writing: whole or not at all."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from safeecgmatch.files import atomic_path, project_root, read_json, sha256_of, write_json


def test_a_failed_write_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), atomic_path(tmp_path / "a.txt") as partial:
        partial.write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_old_file(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(RuntimeError), atomic_path(target) as partial:
        partial.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_replaces_an_older_one(tmp_path):
    target = tmp_path / "cell"
    for content in ("first", "second"):
        with atomic_path(target) as partial:
            partial.mkdir()
            (partial / content).write_text(content)
    assert [path.name for path in target.iterdir()] == ["second"]
    assert list(tmp_path.iterdir()) == [target]


def test_what_a_killed_process_left_goes_with_the_next_write(tmp_path):
    """Beside the same target only, and never what a living process writes."""
    code = f"""
import os, pathlib, signal
from safeecgmatch.files import atomic_path
managers = [atomic_path(pathlib.Path({str(tmp_path)!r}) / name) for name in ("figures", "other")]
for manager in managers:
    (manager.__enter__() / "half").mkdir(parents=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    with atomic_path(tmp_path / "figures") as outer, atomic_path(tmp_path / "figures") as inner:
        inner.mkdir()
        outer.mkdir()
        assert outer.is_dir()
    assert sorted(path.name.split(".")[1] or path.name for path in tmp_path.glob(".*")) == ["other"]


def test_json_and_digest(tmp_path):
    write_json(tmp_path / "deep" / "a.json", {"b": 1, "a": [1.5, None]})
    assert read_json(tmp_path / "deep" / "a.json") == {"a": [1.5, None], "b": 1}
    assert len(sha256_of(tmp_path / "deep" / "a.json")) == 64
    with pytest.raises(ValueError, match="Out of range"):
        write_json(tmp_path / "b.json", float("nan"))
    assert not (tmp_path / "b.json").exists()


def test_the_project_root_outlives_a_temporary_workspace(tmp_path, monkeypatch):
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert project_root() == tmp_path
    monkeypatch.delenv("DVC_ROOT")
    monkeypatch.chdir(tmp_path)
    assert project_root() == tmp_path
