"""Checkpoints: complete or absent, and never of another cell."""

from __future__ import annotations

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


@pytest.mark.parametrize("damage", ["cut", "scrambled", "empty", "foreign", "code"])
def test_a_damaged_file_is_set_aside(tmp_path, damage):
    checkpoint = Checkpoint(tmp_path, "abc")
    checkpoint.save({"n": 3, "weights": torch.randn(1000)})
    content = (tmp_path / FILE).read_bytes()
    if damage == "foreign":
        torch.save([1, 2], tmp_path / FILE)
    elif damage == "code":
        torch.save({"fingerprint": "abc", "harm": print}, tmp_path / FILE)
    else:
        damaged = {"cut": content[: len(content) // 2], "scrambled": b"x" * len(content), "empty": b""}[damage]
        (tmp_path / FILE).write_bytes(damaged)
    state, warning = checkpoint.load()
    assert state is None
    assert "is damaged" in warning and "\n" not in warning
    assert (tmp_path / SET_ASIDE).exists()


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
