"""`kill -9` at any moment, and two cells at once: the same bytes as undisturbed and alone."""

from __future__ import annotations

import multiprocessing
import random
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
import yaml

from safeecgmatch.launching.scratch import Scratch
from tests.engine.trainee import train
from tests.methods.harness import demo_params, phantom_store, split_data

FILES = ("predictions.npz", "trajectory.npz", "history.csv", "model.safetensors", "summary.json", "config.yaml")
SHORT = {"iterations": 36, "epoch": 6, "batch": 16}
WARM = multiprocessing.get_context("forkserver")  # sixty processes would import torch for five seconds each
WARM.set_forkserver_preload([train.__module__])


def make_project(folder: Path, protocol: str) -> Path:
    """A folder in which a cell can train: params and a link to the shared phantom."""
    folder.mkdir()
    (folder / "data").symlink_to(split_data(phantom_store("ptbxl"), "ptbxl", 60, 1), target_is_directory=True)
    params = demo_params(protocol, **SHORT).model_dump()
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    return folder


def start(project: Path, method: str) -> ForkServerProcess:
    process = WARM.Process(target=train, args=(project, method))
    process.start()
    return process


def finish(process: ForkServerProcess) -> None:
    process.join(timeout=300)
    assert process.exitcode == 0


def outputs(project: Path, method: str) -> dict[str, bytes]:
    folder = project / "runs" / "ptbxl" / method / "60" / "1"
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "protocol"),
    [("fixmatch", "paper"), ("safeecgmatch", "paper"), ("scomatch", "paper"), ("ecgmatch", "paper"),
     ("safestudent", "release"), ("openmatch", "release")],
)  # fmt: skip
def test_killed_ten_times_a_cell_ends_with_the_same_bytes(tmp_path, method, protocol):
    undisturbed, killed = make_project(tmp_path / "whole", protocol), make_project(tmp_path / "killed", protocol)
    finish(start(undisturbed, method))
    scratch = killed / "scratch" / "ptbxl" / method / "60" / "1"

    def saved() -> int:
        return max((file.stat().st_mtime_ns for file in scratch.glob("*/checkpoint.pt")), default=0)

    chance = random.Random(method)
    kills = 0
    for _ in range(10):
        process = start(killed, method)
        before = saved()
        while process.is_alive() and saved() in (0, before):
            time.sleep(0.005)
        time.sleep(chance.uniform(0.0, 0.15))
        kills += process.is_alive()
        process.kill()
        process.join()
    assert kills >= 5, "the cell was too quick to be killed often"
    finish(start(killed, method))
    assert outputs(killed, method) == outputs(undisturbed, method)
    [folder] = scratch.iterdir()  # DVC has not recorded the cell
    assert Scratch(folder).verify() and not Scratch(folder).checkpoint.exists()


@pytest.mark.slow
def test_two_cells_at_once_on_one_store_give_the_bytes_of_each_alone(tmp_path):
    alone, together = make_project(tmp_path / "alone", "paper"), make_project(tmp_path / "together", "paper")
    methods = ("fixmatch", "calimatch")
    for method in methods:
        finish(start(alone, method))
    processes = [start(together, method) for method in methods]
    for process in processes:
        finish(process)
    for method in methods:
        assert outputs(together, method) == outputs(alone, method)
