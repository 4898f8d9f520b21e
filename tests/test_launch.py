"""Launchers: a plan from targets, cells forked from one warm process, failures told, results adopted only if wanted."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml

from safeecgmatch.cells import Cell, cells, find_cell
from safeecgmatch.config import load_params
from safeecgmatch.engine import fingerprint
from safeecgmatch.engine.fingerprint import code_of, resolve
from safeecgmatch.errors import UserError
from safeecgmatch.files import write_json
from safeecgmatch.launching import dvc, local, registry, snapshot
from safeecgmatch.launching import run as running
from safeecgmatch.launching.adoption import adopt, waiting
from safeecgmatch.launching.board import Board, Lines
from safeecgmatch.launching.cluster import Cluster, load_cluster
from safeecgmatch.launching.estimate import Speeds, seconds_of, trained_before
from safeecgmatch.launching.jobs import Failure, Job, Means, command, last_lines
from safeecgmatch.launching.run import (
    How,
    Plan,
    cells_at_once,
    choose_gpus,
    describe_failures,
    make_job,
    make_plan,
    shared_stages,
)
from safeecgmatch.launching.scratch import Scratch
from tests.conftest import ROOT
from tests.micro import Project, micro_params

CELL = "ptbxl/fixmatch/60/1"


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


def test_the_first_seed_of_everything_comes_first_and_the_most_unseen_before() -> None:
    ordered = [(cell.seed, cell.ood) for cell in make_plan(load_params(ROOT / "params.yaml"), []).cells]
    assert ordered == sorted(ordered, key=lambda pair: (pair[0], -pair[1]))
    assert {ood for _, ood in ordered} == {30, 60}


def job(folder: Path, name: str = "fixmatch") -> Job:
    return Job(Cell("ptbxl", name, 60, 1), folder / name, "u", folder / f"{name}.log")


def test_last_lines_see_through_progress_bars(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log, 2) == []
    log.write_text("first\n\n10 %\r20 %\r30 %")
    assert last_lines(log, 2) == ["20 %", "30 %"]


def test_failures_are_told_with_the_end_of_their_logs(tmp_path: Path) -> None:
    bad = job(tmp_path)
    bad.log.write_text("no such record\n")
    plan = Plan([], [bad.cell, bad.cell], ["evaluate", "tables"])
    text = describe_failures([Failure(bad, "exit status 1")], plan)
    assert "ptbxl/fixmatch/60/1 failed (exit status 1)" in text and "    no such record" in text
    assert "1 of 2 cells failed, so evaluate and tables were not run" in text


def progress(job: Job, iteration: int, seconds: float, begun_at: int = 0) -> None:
    write_json(Scratch(job.folder).progress, {
        "iteration": iteration, "iterations": 100, "seconds": seconds, "begun_at": begun_at,
    })  # fmt: skip


def test_the_time_left_comes_from_iterations_and_never_from_waiting(tmp_path: Path, monkeypatch) -> None:
    jobs = [job(tmp_path, name) for name in ("supervised", "fixmatch", "calimatch")]
    tally = Lines(jobs, 100, 2, Speeds(), io.StringIO())
    assert tally.seconds_left() is None and "left" not in tally.summary()
    tally.started(jobs[0])
    assert tally.seconds_left() is None, "a cell without an iteration tells nothing"
    progress(jobs[0], 60, 5.0, begun_at=50)  # 0.5 s per iteration since it went on from a checkpoint
    assert tally.seconds_left() == pytest.approx((40 * 0.5 + 2 * 100 * 0.5) / 2)
    assert tally.line(jobs[0]) == "ptbxl/supervised/60/1, 60/100 iterations, 0:20 left"
    tally.started(jobs[1])
    tally.queued(jobs[1])
    assert tally.summary() == "2 queued, 1 running, 0 of 3 done, 1:00 left"
    tally.finished(jobs[0], None)
    tally.finished(jobs[1], Failure(jobs[1], "killed"))
    assert "1 queued, 0 running, 1 of 3 done, 1 failed" in tally.summary()


@pytest.mark.parametrize("kind", [Lines, Board])
def test_board_and_lines_show_failures_at_once_and_the_sum_at_the_end(tmp_path: Path, kind: type[Lines]) -> None:
    stream = io.StringIO()
    good, bad = job(tmp_path), job(tmp_path, "calimatch")
    with kind([good, bad], 100, 1, Speeds(), stream) as report:
        report.started(good)
        progress(good, 50, 5.0)
        report.last = -1e9
        report.tick()
        if isinstance(report, Board):
            report.live.console.print(report.render())
        report.finished(good, None)
        report.started(bad)
        report.finished(bad, Failure(bad, "exit status 1"))
    shown = " ".join(stream.getvalue().split())
    assert "ptbxl/fixmatch/60/1, 50/100 iterations, 0:05 left" in shown
    assert "ptbxl/calimatch/60/1 failed (exit status 1), log in" in shown
    assert "training cells: 0 queued, 0 running, 1 of 2 done, 1 failed" in shown


def test_hours_are_estimated_from_trained_cells(tmp_path: Path) -> None:
    wanted = [Cell("ptbxl", method, 60, 1) for method in ("fixmatch", "calimatch", "adello")]
    assert seconds_of(wanted, 100, trained_before(tmp_path, "micro")) is None
    for method, speed in (("fixmatch", 10.0), ("calimatch", 5.0)):
        record = {"profile": "micro", "cell": {"method": method}, "iterations_per_second": speed}
        write_json(tmp_path / "tracking" / method / "run.json", record)
    write_json(tmp_path / "tracking/x/run.json", record | {"profile": "paper", "iterations_per_second": 1e-6})
    assert seconds_of(wanted, 100, trained_before(tmp_path, "micro")) == pytest.approx(10 + 20 + 15)


def test_cluster_yaml_is_documented_and_a_wrong_key_is_told(tmp_path: Path) -> None:
    assert load_cluster(ROOT / "cluster.yaml") == load_cluster(tmp_path / "absent") == Cluster()
    (tmp_path / "cluster.yaml").write_text("slurm: {partitoin: gpu}\n")
    with pytest.raises(UserError, match=r"unknown key 'slurm\.partitoin'"):
        load_cluster(tmp_path / "cluster.yaml")


def test_a_launcher_that_is_unknown_or_lacks_its_package_is_told() -> None:
    assert registry.launcher("local") is local.launch
    with pytest.raises(UserError, match="There is no launcher 'abacus'"):
        registry.launcher("abacus")
    with pytest.raises(
        UserError, match=r"--on slurm needs the package no_such; install it with: pip install .* -e '\.\[slurm\]'"
    ):
        registry.need("no_such", "slurm")


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


# Adoption: only exactly what is wanted.


class Finished:
    """A finished result of the micro study's FixMatch cell in a project of its own, with stand-ins for its files."""

    def __init__(self, project: Project, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shutil.copytree(project.root / "data", root / "data", symlinks=True)
        shutil.copytree(ROOT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__"))
        monkeypatch.chdir(root)
        monkeypatch.delenv("DVC_ROOT", raising=False)
        monkeypatch.setattr(fingerprint, "SOURCES", root / "src")
        self.root, self.params = root, micro_params()
        config = self.wanted()
        self.scratch = Scratch.of(CELL, config["fingerprint"])
        self.scratch.folder.mkdir(parents=True)
        self.scratch.config.write_text(yaml.safe_dump(config))
        write_json(self.scratch.record, {"uid": "u", "code": code_of("fixmatch")})
        with self.scratch.sealing(config["fingerprint"]) as folder:
            (folder / "run").mkdir()
            (folder / "run" / "model.safetensors").write_bytes(bytes(1000))
            write_json(folder / "run.json", {"uid": "u"})

    def wanted(self) -> dict:
        (self.root / "params.yaml").write_text(yaml.safe_dump(self.params))
        params = load_params()
        return resolve(params, find_cell(params, CELL))

    def waiting(self) -> Path | None:
        params = load_params()
        return waiting(params, find_cell(params, CELL))


@pytest.fixture
def finished(study: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Finished:
    return Finished(study, tmp_path / "root", monkeypatch)


def test_what_is_wanted_is_taken_over_with_its_run_id(finished: Finished) -> None:
    write_json(finished.scratch.mlflow, {"run_id": "r", "logged": True})
    assert finished.waiting() == finished.scratch.finished
    adopted, sentence = adopt(CELL, finished.wanted())
    assert adopted and sentence.startswith(f"{CELL}: trained before with the same params, code and data")
    assert (finished.root / "runs" / CELL / "model.safetensors").read_bytes() == bytes(1000)
    record = (finished.root / "tracking" / CELL / "run.json").read_text()
    assert yaml.safe_load(record) == {"uid": "u", "run_id": "r", "logged": True}
    assert finished.waiting() == finished.scratch.finished, "DVC has not recorded it yet"
    finished.scratch.discard()
    assert not (finished.root / "scratch" / "ptbxl").exists() and finished.waiting() is None
    assert finished.scratch.recorded.exists()
    finished.scratch.discard()


def other_params(finished: Finished) -> None:
    finished.params["methods"]["fixmatch"]["threshold"] = 0.9


def other_code(finished: Finished) -> None:
    with (finished.root / "src/safeecgmatch/methods/fixmatch/method.py").open("a") as stream:
        stream.write("\nSHARE = 0.5\n")


def other_data(finished: Finished) -> None:
    split = finished.root / "data/splits/ptbxl/60/1/split.npz"
    content = split.read_bytes()
    split.unlink()  # it may be a link into DVC's cache
    split.write_bytes(content + b"x")


def truncated(finished: Finished) -> None:
    (finished.scratch.finished / "run" / "model.safetensors").write_bytes(bytes(500))


def edited(finished: Finished) -> None:
    (finished.scratch.finished / "run" / "model.safetensors").write_bytes(bytes(999) + b"1")


def incomplete(finished: Finished) -> None:
    (finished.scratch.finished / "run" / "model.safetensors").unlink()


def unsealed(finished: Finished) -> None:
    (finished.scratch.finished / "finished.json").write_text("{")


def renamed(finished: Finished) -> None:
    other_params(finished)
    finished.scratch.folder.rename(finished.scratch.folder.parent / finished.wanted()["fingerprint"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            other_params,
            "holds a finished result of other params (hyper.threshold is 0.7, wanted 0.9); it is not used.",
        ),
        (other_code, "holds a finished result of other code (safeecgmatch.methods.fixmatch.method); it is not used."),
        (other_data, "holds a finished result of other data; it is not used."),
        (truncated, "was truncated or edited after it was written (run/model.safetensors); it is not used."),
        (edited, "was truncated or edited after it was written (run/model.safetensors); it is not used."),
        (incomplete, "has other files than it was written with (run/model.safetensors); it is not used."),
        (unsealed, "has no readable finished.json; it is not used."),
        (renamed, "is of the fingerprint "),
    ],
)
def test_anything_else_is_never_taken_over(finished: Finished, change: Callable, reason: str) -> None:
    change(finished)
    config = finished.wanted()
    assert finished.waiting() is None
    adopted, sentence = adopt(CELL, config)
    assert not adopted and reason in sentence
    assert not (finished.root / "runs").exists() and not (finished.root / "tracking").exists()


# The local launcher, with real cells.


class Watcher:
    """A report that runs `look` at every tick."""

    def __init__(self, look: Callable[[], None] = lambda: None) -> None:
        self.look, self.begun, self.most, self.running = look, [], 0, 0

    def started(self, job: Job) -> None:
        self.begun.append(job.name)
        self.running += 1
        self.most = max(self.most, self.running)

    def queued(self, job: Job) -> None:
        raise AssertionError("nothing is requeued on this machine")

    def finished(self, job: Job, failure: Failure | None) -> None:
        self.running -= 1

    def tick(self) -> None:
        self.look()


class LongStudy:
    """Jobs of the micro study with another number of iterations, and a snapshot of it, beside its data."""

    def __init__(self, project: Project, root: Path, monkeypatch: pytest.MonkeyPatch, iterations: int) -> None:
        root.mkdir()
        monkeypatch.chdir(root)
        monkeypatch.delenv("DVC_ROOT", raising=False)
        content = micro_params()
        content["train"] |= {"iterations": iterations}
        (root / "params.yaml").write_text(yaml.safe_dump(content))
        for name in ("src", "stages"):
            (root / name).symlink_to(ROOT / name)
        (root / "data").symlink_to(project.root / "data")
        self.params = load_params()
        self.means = Means(snapshot.take(root), root / "data", 2, (), Cluster(), upload=False)

    def job(self, path: str) -> Job:
        return make_job(self.params, find_cell(self.params, path))


@pytest.fixture
def long_study(study: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], LongStudy]:
    return partial(LongStudy, study, tmp_path / "study", monkeypatch)


def pid_of(job: Job) -> int:
    return int((job.folder / "lock").read_text())


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def test_a_killed_cell_costs_itself_alone_and_goes_on_next_time(long_study) -> None:
    study = long_study(40)
    jobs = [study.job(path) for path in (CELL, "ptbxl/supervised/60/1", "ptbxl/safeecgmatch/60/1")]
    victim = jobs[0]

    def kill_once() -> None:
        if Scratch(victim.folder).checkpoint.exists() and not kills:
            os.kill(pid_of(victim), signal.SIGKILL)
            kills.append(1)

    kills: list[int] = []
    report = Watcher(kill_once)
    failures = local.launch(jobs, report, study.means)
    assert [(failure.job, failure.reason) for failure in failures] == [(victim, "killed by signal 9 (SIGKILL)")]
    assert report.most == 2 and report.running == 0
    assert all(Scratch(job.folder).problem() == "" for job in jobs[1:])
    again = Watcher()
    assert local.launch([study.job(job.name) for job in jobs], again, study.means) == []
    assert Scratch(victim.folder).problem() == "" and study.job(CELL).uid == victim.uid
    assert "iterations" not in jobs[1].log.read_text(), "a finished cell was trained a second time"


def test_an_interrupt_lets_cells_write_a_checkpoint_and_leaves_nobody(long_study) -> None:
    study = long_study(10**6)
    job = study.job(CELL)

    def interrupt() -> None:
        if Scratch(job.folder).progress.exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        local.launch([job], Watcher(interrupt), study.means)
    assert Scratch(job.folder).checkpoint.exists() and not alive(pid_of(job))
    assert "run the same command again to go on" in last_lines(job.log, 1)[0]


@pytest.mark.slow
def test_orphans_end_themselves(long_study) -> None:
    study = long_study(10**6)
    job = study.job(CELL)

    def kill_the_parent() -> None:
        if Scratch(job.folder).progress.exists() and not killed:
            parent = int(Path(f"/proc/{pid_of(job)}/stat").read_text().split()[3])
            assert Path(f"/proc/{parent}/status").read_text().split("Threads:")[1].split()[0] == "1"
            os.kill(parent, signal.SIGKILL)
            killed.append(parent)

    killed: list[int] = []
    [failure] = local.launch([job], Watcher(kill_the_parent), study.means)
    assert failure.reason == "the process that it was forked from was killed"
    deadline = time.monotonic() + 60
    while alive(pid_of(job)):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert Scratch(job.folder).checkpoint.exists()


def test_a_cell_whose_data_changed_after_submission_refuses(long_study, tmp_path) -> None:
    study = long_study(4)
    job = study.job(CELL)
    arguments, environment, where = command(job, study.means, folder=tmp_path / "another")
    done = subprocess.run(arguments, cwd=where, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 1 and "changed after submission; submit it again" in done.stderr


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
