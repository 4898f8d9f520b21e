"""`safeecgmatch run`: its plan from targets, the order, launchers, GPUs and hours, and what is said of failed cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from safeecgmatch.cells import Cell, cells, find_cell
from safeecgmatch.config import load_params
from safeecgmatch.errors import UserError
from safeecgmatch.files import write_json
from safeecgmatch.launching import dvc, jobs, local
from safeecgmatch.launching import run as running
from safeecgmatch.launching.cluster import Cluster, load_cluster
from safeecgmatch.launching.jobs import Failure, failure_of, last_lines
from safeecgmatch.launching.run import (
    How,
    Plan,
    describe_failures,
    launcher,
    make_plan,
    seconds_of_training,
    settled,
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
            settled(how, params)
    else:
        gpus = settled(how, params).gpus
        assert gpus == chosen and (not gpus or settled(how, params).jobs == len(gpus))


def test_failures_are_told_with_the_end_of_their_logs(tmp_path: Path) -> None:
    bad = job(tmp_path)
    bad.log.write_text("no such record\n")
    plan = Plan([], [bad.cell, bad.cell], ["evaluate", "tables"])
    text = describe_failures([Failure(bad, "exit status 1")], plan)
    assert "ptbxl/fixmatch/60/1 failed (exit status 1)" in text and "    no such record" in text
    assert "1 of 2 cells failed, so evaluate and tables were not run" in text


def test_cluster_yaml_is_documented_and_a_wrong_key_is_told(tmp_path: Path) -> None:
    assert load_cluster(ROOT / "cluster.yaml") == load_cluster(tmp_path / "absent") == Cluster()
    (tmp_path / "cluster.yaml").write_text("slurm: {partitoin: gpu}\n")
    with pytest.raises(UserError, match=r"unknown key 'slurm\.partitoin'"):
        load_cluster(tmp_path / "cluster.yaml")


def test_an_unknown_launcher_is_told() -> None:
    assert launcher("local") is local
    with pytest.raises(UserError, match="There is no launcher 'abacus'"):
        launcher("abacus")


@pytest.mark.parametrize(("name", "package"), [("slurm", "submitit"), ("dask", "distributed")])
def test_without_its_package_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setattr(jobs, "find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=rf"--on {name} needs the package {package}; install it with: pip install .* -e '\.\[{name}\]'"
    ):
        launcher(name).check(Cluster())


def test_hours_are_estimated_from_trained_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    params = load_params(ROOT / "params.yaml")
    iterations = params.train.iterations
    wanted = [Cell("ptbxl", method, 60, 1) for method in ("fixmatch", "calimatch", "adello")]
    assert seconds_of_training(wanted, params) is None
    for method, speed in (("fixmatch", 10.0), ("calimatch", 5.0)):
        record = {"profile": params.profile, "cell": {"method": method}, "iterations_per_second": speed}
        write_json(tmp_path / "tracking" / method / "run.json", record)
    write_json(tmp_path / "tracking/x/run.json", record | {"profile": "paper", "iterations_per_second": 1e-6})
    assert seconds_of_training(wanted, params) == pytest.approx(iterations * (0.1 + 0.2 + 0.15))


def test_last_lines_see_through_progress_bars(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log, 2) == []
    log.write_text("first\n\n10 %\r20 %\r30 %")
    assert last_lines(log, 2) == ["20 %", "30 %"]


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (-9, "killed by signal 9 (SIGKILL)"),
        (3, "exit status 3"),
        (0, "its process ended well, but {folder} shows no result"),
    ],
)
def test_an_exit_status_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, reason: str) -> None:
    monkeypatch.setattr(jobs, "SECONDS_FOR_A_SHARED_FOLDER", -1.0)
    bad = job(tmp_path)
    assert failure_of(bad, status) == Failure(bad, reason.format(folder=bad.folder))
    (bad.folder / "finished").mkdir(parents=True)
    assert (failure_of(bad, status) is None) == (status == 0)
