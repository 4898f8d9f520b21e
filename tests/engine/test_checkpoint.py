"""Checkpoints: complete or absent, and never of another cell."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import pytest
import torch

from safeecgmatch.engine.checkpoint import FILE, SET_ASIDE, Checkpoint


def test_round_trip(tmp_path):
    Checkpoint(tmp_path / "cell", "abc").save({"n": 3, "weights": {"w": torch.arange(4.0)}})
    state, warning = Checkpoint(tmp_path / "cell", "abc").load()
    assert state is not None and warning == ""
    assert state["n"] == 3 and torch.equal(state["weights"]["w"], torch.arange(4.0))


def test_no_checkpoint_is_no_trouble(tmp_path):
    assert Checkpoint(tmp_path, "abc").load() == (None, "")


def test_another_config_is_set_aside(tmp_path):
    Checkpoint(tmp_path, "abc").save({"n": 3})
    state, warning = Checkpoint(tmp_path, "xyz").load()
    assert state is None
    assert "another config" in warning and "starts anew" in warning
    assert not (tmp_path / FILE).exists() and (tmp_path / SET_ASIDE).exists()


@pytest.mark.parametrize("damage", ["cut", "scrambled", "empty", "foreign", "flipped"])
def test_a_damaged_file_is_set_aside(tmp_path, damage):
    checkpoint = Checkpoint(tmp_path, "abc")
    checkpoint.save({"n": 3, "weights": torch.randn(1000)})
    content = (tmp_path / FILE).read_bytes()
    if damage == "foreign":
        torch.save([1, 2], tmp_path / FILE)
    else:
        half = len(content) // 2  # among the weights, where torch.load notices nothing
        flipped = bytes(255 - byte for byte in content[half : half + 40])
        damaged = {
            "cut": content[:half], "scrambled": b"x" * len(content), "empty": b"",
            "flipped": content[:half] + flipped + content[half + 40 :],
        }[damage]  # fmt: skip
        (tmp_path / FILE).write_bytes(damaged)
    state, warning = checkpoint.load()
    assert state is None
    assert "is damaged" in warning and "\n" not in warning
    assert (tmp_path / SET_ASIDE).exists()


def test_content_that_may_not_be_loaded_is_set_aside(tmp_path):
    """With a good digest: an object of code, and something that is no state at all."""
    checkpoint = Checkpoint(tmp_path, "abc")
    for bad in ({"harm": print}, None):
        buffer = io.BytesIO()
        torch.save({"fingerprint": "abc", **bad} if bad else [1, 2], buffer)
        digest = hashlib.sha256(buffer.getvalue()).hexdigest()
        (tmp_path / FILE).write_bytes(f"{digest}\n".encode() + buffer.getvalue())
        state, warning = checkpoint.load()
        assert state is None and "is no checkpoint" in warning and "\n" not in warning


def test_all_bytes_are_on_the_disk_before_the_file_has_its_name(tmp_path, monkeypatch):
    events = []
    sync, rename = os.fsync, Path.replace

    def noted_sync(handle: int) -> None:
        events.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        sync(handle)

    def noted_rename(path: Path, target: Path) -> Path:
        events.append("renamed")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "replace", noted_rename)
    Checkpoint(tmp_path, "abc").save({"n": 3})
    assert [Path(event).name for event in events] == [FILE, "renamed", tmp_path.name]


def test_a_failed_save_keeps_the_last_good_one(tmp_path):
    checkpoint = Checkpoint(tmp_path, "abc")
    checkpoint.save({"n": 3})
    with pytest.raises(Exception, match="pickle"):
        checkpoint.save({"n": 4, "bad": (value for value in [1])})
    state, _ = checkpoint.load()
    assert state is not None and state["n"] == 3
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_discard_removes_its_traces_only(tmp_path):
    checkpoint = Checkpoint(tmp_path / "cell", "abc")
    checkpoint.save({"n": 3})
    checkpoint.discard()
    assert not (tmp_path / "cell").exists()
    checkpoint.save({"n": 3})
    (tmp_path / "cell" / "other").write_text("x")
    checkpoint.discard()
    assert [path.name for path in (tmp_path / "cell").iterdir()] == ["other"]
