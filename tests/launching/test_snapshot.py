"""What is trained is a copy of the tree as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from safeecgmatch.launching import snapshot


def test_a_snapshot_is_what_the_tree_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    for name in ("src/a.py", "src/__pycache__/a.pyc", "stages/b.py", "params.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    first = snapshot.take(tmp_path)
    assert snapshot.take(tmp_path) == first
    (tmp_path / "src/a.py").write_text("2")
    assert snapshot.take(tmp_path) != first and (first / "src/a.py").read_text() == "1"
    names = {file.relative_to(first).as_posix() for file in first.rglob("*") if file.is_file()}
    assert names == {"origin.json", "params.yaml", "src/a.py", "stages/b.py"}
    assert snapshot.origin(first) == ("", False)
