"""`safeecgmatch run`: a plan from targets, its order, the GPUs that it takes, and what it says about failed cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from safeecgmatch.cells import cells, find_cell
from safeecgmatch.config import load_params
from safeecgmatch.errors import UserError
from safeecgmatch.launching import dvc
from safeecgmatch.launching import run as running
from safeecgmatch.launching.cluster import Cluster
from safeecgmatch.launching.jobs import Failure
from safeecgmatch.launching.run import (
    How,
    Plan,
    cells_at_once,
    choose_gpus,
    describe_failures,
    make_plan,
    shared_stages,
)
from tests.conftest import ROOT
from tests.launching.study import job
from tests.micro import Project


def test_plans() -> None:
    params = load_params(ROOT / "params.yaml")
    everything = cells(params)
    whole = make_plan(params, [])
    assert whole.before == sorted({"code", *(cell.split_stage for cell in everything)})
    assert set(whole.cells) == set(everything) and whole.after == ["evaluate", "tables"]
    assert make_plan(params, ["tables"]) == whole
    assert make_plan(params, ["evaluate"]).after == ["evaluate"]
    one = make_plan(params, ["ptbxl/fixmatch/30/1"])
    assert one == Plan(["code", "split@ptbxl-30-1"], [find_cell(params, "ptbxl/fixmatch/30/1")], [])
    assert make_plan(params, ["train@ptbxl-fixmatch-30-1"]) == one
    group = make_plan(params, ["train_safeecgmatch"]).cells
    assert set(group) == {cell for cell in everything if cell.stage_name == "train_safeecgmatch"}
    pattern = make_plan(params, ["train@ptbxl-fixmatch-*"])
    assert len(pattern.cells) == len(params.grid.ood_levels) * len(params.grid.seeds)
    assert set(make_plan(params, ["*/2"]).cells) == {cell for cell in everything if cell.seed == 2}
    assert make_plan(params, ["filter@ptbxl"]) == Plan(["filter@ptbxl"], [], [])
    assert make_plan(params, ["split"]) == Plan(["split"], [], [])


@pytest.mark.parametrize(
    "target", ["trian", "split@typo", "download@mimic", "code@ptbxl", "train@ptbxl-fixmatch-30-9", ""]
)
def test_an_unknown_target_is_an_error(target: str) -> None:
    with pytest.raises(UserError, match=f"'{target}' names no stage or cell of params.yaml"):
        make_plan(load_params(ROOT / "params.yaml"), ["evaluate", target])


def test_the_stages_before_cells_are_those_of_dvc(study: Project) -> None:
    listed = study.run("dvc", "stage", "list", "--name-only").split()
    shared = {name for name in listed if not name.startswith(("train", "evaluate", "tables"))}
    assert {*shared, *(name.partition("@")[0] for name in shared)} == shared_stages(
        cells(load_params(study.root / "params.yaml"))
    )


def test_no_stages_mean_nothing_and_not_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dvc, "ask", lambda *arguments, **_: pytest.fail("DVC was asked"))
    dvc.reproduce([])


def test_what_dvc_lock_says_of_some_stages_is_forgotten_and_nothing_else() -> None:
    entry = "  {}:\n    cmd: python stages/x.py\n    outs:\n    - path: runs/x\n      md5: 1\n"
    names = ("code", "train@ptbxl-fixmatch-60-1", "train@ptbxl-fixmatch-60-10", "tables")
    text = "schema: '2.0'\nstages:\n" + "".join(map(entry.format, names))
    assert dvc.without(text, []) == text
    assert dvc.without(text, ["train@ptbxl-fixmatch-60-1"]) == text.replace(entry.format(names[1]), "")


def test_the_first_seed_of_everything_comes_first_and_the_most_unseen_before() -> None:
    ordered = [(cell.seed, cell.ood) for cell in make_plan(load_params(ROOT / "params.yaml"), []).cells]
    assert ordered == sorted(ordered, key=lambda pair: (pair[0], -pair[1]))
    assert {ood for _, ood in ordered} == {30, 60}


@pytest.mark.parametrize(
    ("device", "visible", "asked", "chosen"),
    [
        ("cpu", None, (), ()),
        ("cuda", None, (), ("0", "1", "2", "3")),
        ("cuda", None, ("0", "3"), ("0", "3")),
        ("cuda", "2,3", (), ("2", "3")),
        ("cuda", None, ("7",), "--gpus names 7, but this machine has 0, 1, 2, 3"),
        ("cpu", None, ("0",), "train.device in params.yaml is 'cpu'"),
    ],
)
def test_one_cell_per_gpu(monkeypatch, device: str, visible: str | None, asked: tuple[str, ...], chosen) -> None:
    params = load_params(ROOT / "params.yaml")
    params = params.model_copy(update={"train": params.train.model_copy(update={"device": device})})
    how = How("local", 0, asked, Cluster(), False)
    monkeypatch.setattr(running, "gpu_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if isinstance(chosen, str):
        with pytest.raises(UserError, match=chosen):
            choose_gpus(params, how)
    else:
        gpus = choose_gpus(params, how)
        assert gpus == chosen and (not gpus or cells_at_once(params, how, gpus) == len(gpus))


def test_failures_are_told_with_the_end_of_their_logs(tmp_path: Path) -> None:
    bad = job(tmp_path)
    bad.log.write_text("no such record\n")
    plan = Plan([], [bad.cell, bad.cell], ["evaluate", "tables"])
    text = describe_failures([Failure(bad, "exit status 1")], plan)
    assert "ptbxl/fixmatch/60/1 failed (exit status 1)" in text and "    no such record" in text
    assert "1 of 2 cells failed, so evaluate and tables were not run" in text
