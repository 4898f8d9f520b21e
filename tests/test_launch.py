"""The launcher: a plan from targets, jobs side by side, failures reported, an interrupt that leaves nobody behind."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from safeecgmatch.cells import cells
from safeecgmatch.config import load_params
from safeecgmatch.errors import UserError
from safeecgmatch.launching import graph
from safeecgmatch.launching.board import Board, Lines
from safeecgmatch.launching.jobs import Job, Outcome, last_lines
from safeecgmatch.launching.local import run_local
from safeecgmatch.launching.places import PLACES, place, places
from tests.conftest import ROOT


class Silent:
    def __init__(self) -> None:
        self.running, self.most = 0, 0

    def started(self, job: Job) -> None:
        self.running += 1
        self.most = max(self.most, self.running)

    def finished(self, outcome: Outcome) -> None:
        self.running -= 1

    def tick(self) -> None:
        pass


def python(name: str, code: str, folder: Path) -> Job:
    return Job(name, (sys.executable, "-c", code), folder / f"{name}.log")


def test_jobs_run_side_by_side_and_a_failure_stops_nobody(tmp_path: Path) -> None:
    sleep = "import time; time.sleep(0.3); print('done')"
    jobs = [python("a", sleep, tmp_path), python("b", "raise SystemExit('no such record')", tmp_path)]
    jobs += [python(name, sleep, tmp_path) for name in "cd"]
    report = Silent()
    outcomes = run_local(jobs, report, at_once=2)
    assert {outcome.job.name: outcome.status for outcome in outcomes} == {"a": 0, "b": 1, "c": 0, "d": 0}
    assert report.most == 2 and report.running == 0
    assert last_lines(tmp_path / "a.log", 3) == ["done"]
    plan = graph.Plan([], ["a", "b", "c", "d"], ["evaluate", "tables"])
    text = graph.describe_failures([outcome for outcome in outcomes if outcome.status], plan)
    assert "b failed" in text and "    no such record" in text
    assert "1 of 4 cells failed, so evaluate and tables were not run" in text


def test_an_interrupt_lets_jobs_end_in_order(tmp_path: Path) -> None:
    trap = (
        "import signal, sys, time\n"
        "def end(*_): print('checkpoint written', flush=True); sys.exit(130)\n"
        "signal.signal(signal.SIGINT, end); print('up', flush=True); time.sleep(60)"
    )
    job = python("a", trap, tmp_path)

    class Impatient(Silent):
        def tick(self) -> None:
            if last_lines(job.log, 1) == ["up"]:
                raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_local([job], Impatient(), at_once=1)
    assert last_lines(job.log, 1) == ["checkpoint written"]
    assert time.monotonic() - began < 30


def test_no_more_cells_train_than_there_are_places(tmp_path: Path) -> None:
    hold = (
        "import time; from safeecgmatch.launching.places import place\n"
        "with place():\n    began = time.monotonic(); time.sleep(0.3); print(began, time.monotonic())"
    )
    jobs = [python(name, hold, tmp_path) for name in "abc"]
    with places(1) as to_train:
        outcomes = run_local(jobs, Silent(), at_once=3, environment=to_train)
    assert [outcome.status for outcome in outcomes] == [0, 0, 0]
    turns = sorted(tuple(map(float, last_lines(job.log, 1)[0].split())) for job in jobs)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(turns))


def test_a_killed_cell_frees_its_place_and_without_a_launcher_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    imports = "import time; from safeecgmatch.launching.places import place"
    code = f"{imports}\nwith place(): print('in', flush=True); time.sleep(60)"
    with places(1) as to_train:
        holder = subprocess.Popen([sys.executable, "-c", code], env=os.environ | to_train, stdout=subprocess.PIPE)
        assert holder.stdout is not None and holder.stdout.readline() == b"in\n"
        holder.kill()
        holder.communicate()
        monkeypatch.setenv(PLACES, to_train[PLACES])
        with place():
            pass
    with place():  # the launcher has ended, its folder is gone
        pass
    monkeypatch.delenv(PLACES)
    with place():
        pass


def test_last_lines_see_through_progress_bars(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log, 2) == []
    log.write_text("first\n\n10 %\r20 %\r30 %")
    assert last_lines(log, 2) == ["20 %", "30 %"]


def test_lines_for_logs_name_failures_and_the_total(tmp_path: Path) -> None:
    stream = io.StringIO()
    good, bad = (Job(name, (), tmp_path / f"{name}.log") for name in ("good", "bad"))
    with Lines(2, "training cells", stream) as report:
        for job, status in ((good, 0), (bad, 1)):
            report.started(job)
            report.tick()
            report.finished(Outcome(job, status, 1.0))
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("bad failed, log in ")
    assert lines[1].startswith("training cells: 2/2 cells (100 %)")


def test_the_board_shows_each_running_job_with_its_last_line(tmp_path: Path) -> None:
    stream = io.StringIO()
    job = Job("train@ptbxl-fixmatch-30-1", (), tmp_path / "log")
    job.log.write_text("ptbxl/fixmatch/30/1: 50/150 iterations\n")
    with Board(3, "training cells", stream) as report:
        report.started(job)
        report.tick()
        report.live.console.print(report.render())
        shown = stream.getvalue()
        report.finished(Outcome(job, 1, 2.0))
        report.tick()
        report.live.console.print(report.render())
    assert "train@ptbxl-fixmatch-30-1" in shown and "50/150 iterations" in shown and "0/3" in shown
    assert "1/3" in stream.getvalue() and "left, 1 failed" in stream.getvalue()


def test_plans() -> None:
    params = load_params(ROOT / "params.yaml")
    everything = cells(params)
    whole = graph.make_plan(params, [])
    assert whole == graph.Plan(graph.SHARED, [cell.stage for cell in everything], ["evaluate", "tables"])
    assert graph.make_plan(params, ["tables"]) == whole
    assert graph.make_plan(params, ["evaluate"]).after == ["evaluate"]
    one = graph.make_plan(params, ["ptbxl/fixmatch/30/1"])
    assert one == graph.Plan(["code", "split@ptbxl-30-1"], ["train@ptbxl-fixmatch-30-1"], [])
    assert graph.make_plan(params, ["train@ptbxl-fixmatch-30-1"]) == one
    group = graph.make_plan(params, ["train_safeecgmatch"]).cells
    assert group == [cell.stage for cell in everything if cell.stage_name == "train_safeecgmatch"]
    pattern = graph.make_plan(params, ["train@ptbxl-fixmatch-*"])
    assert len(pattern.cells) == len(params.grid.ood_levels) * len(params.grid.seeds)
    assert graph.make_plan(params, ["filter@ptbxl"]) == graph.Plan(["filter@ptbxl"], [], [])
    with pytest.raises(UserError, match="'trian' names no stage or cell"):
        graph.make_plan(params, ["trian"])


TOY = """\
stages:
  split:
    matrix:
      dataset: [ptbxl]
      ood: [30, 60]
      seed: [1]
    cmd: echo ${item.ood} > split-${item.ood}
    outs:
      - split-${item.ood}
  train:
    matrix:
      ood: [30, 60]
      cell: [1, 2]
    cmd: python cell.py ${item.ood} ${item.cell}
    deps:
      - cell.py
      - split-${item.ood}
    params:
      - bad
    outs:
      - runs/${item.ood}/${item.cell}
  evaluate:
    cmd: ls runs/* > metrics
    deps:
      - runs
    outs:
      - metrics
  tables:
    cmd: cp metrics table
    deps:
      - metrics
    outs:
      - table
"""
CELL = """\
import sys, time, yaml
from pathlib import Path
name = "-".join(sys.argv[1:])
print("training", name)
if yaml.safe_load(open("params.yaml"))["bad"] == name:
    sys.exit(f"cell {name} cannot be trained")
time.sleep(0.5)
Path("runs", sys.argv[1]).mkdir(parents=True, exist_ok=True)
Path("runs", *sys.argv[1:]).write_text(name)
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small DVC project with the stage names of ours; MLflow is left out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    (tmp_path / "dvc.yaml").write_text(TOY)
    (tmp_path / "cell.py").write_text(CELL)
    (tmp_path / "params.yaml").write_text("bad: 30-2\n")
    (tmp_path / ".gitignore").write_text("/runs/\n")
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q"], check=True)
    subprocess.run([sys.executable, "-m", "dvc", "config", "core.analytics", "false"], check=True)

    class NoRecorder:
        def __enter__(self) -> dict[str, str]:
            return {}

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(graph.tracking, "shared_recorder", NoRecorder)
    return tmp_path


@pytest.mark.slow
def test_the_graph_runs_in_parallel_and_recovers_from_a_failed_cell(toy: Path) -> None:
    stages = [f"train@{ood}-{cell}" for ood in (30, 60) for cell in (1, 2)]
    plan = graph.Plan(["split"], stages, ["evaluate", "tables"])
    failed = graph.run(plan, at_once=3)
    assert [outcome.job.name for outcome in failed] == ["train@30-2"]
    assert any("cell 30-2 cannot be trained" in line for line in last_lines(failed[0].job.log, 15))
    assert sorted(str(file) for file in Path("runs").rglob("*") if file.is_file()) == [
        "runs/30/1",
        "runs/60/1",
        "runs/60/2",
    ]
    assert not Path("metrics").exists()

    Path("params.yaml").write_text("bad: none\n")
    assert graph.run(plan, at_once=2) == []
    assert Path("table").read_text().split() == ["runs/30:", "1", "2", "runs/60:", "1", "2"]
    assert graph.stale_stages() == set()
    before = {file: file.stat().st_mtime_ns for file in Path("runs").rglob("*")}
    assert graph.run(plan, at_once=2) == []
    assert before == {file: file.stat().st_mtime_ns for file in Path("runs").rglob("*")}


@pytest.mark.slow
def test_after_an_interrupt_dvc_can_go_on(toy: Path) -> None:
    """DVC must not be left locked by cells that were ended."""
    Path("params.yaml").write_text("bad: none\n")
    Path("cell.py").write_text(CELL.replace("time.sleep(0.5)", "time.sleep(60)"))
    subprocess.run([sys.executable, "-m", "dvc", "repro", "-q", "split"], check=True, env=graph.environment())
    code = (
        "from safeecgmatch.launching import graph\n"
        "from safeecgmatch.launching.board import board\n"
        "from safeecgmatch.launching.jobs import Job\n"
        "from safeecgmatch.launching.local import run_local\n"
        "job = Job('train@30-1', (*graph.DVC, 'repro', '-s', 'train@30-1'), graph.LOGS / 'train@30-1.log')\n"
        "with board(1, 'cells') as report: run_local([job], report, 1, graph.environment())\n"
    )
    launcher = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not any("training 30-1" in line for line in last_lines(graph.LOGS / "train@30-1.log", 5)):
        assert time.monotonic() < deadline and launcher.poll() is None
        time.sleep(0.2)
    os.kill(launcher.pid, signal.SIGINT)
    assert launcher.wait(timeout=70) != 0
    Path("cell.py").write_text(CELL)
    assert graph.run(graph.Plan(["split"], ["train@30-1"], []), at_once=1) == []
    assert Path("runs/30/1").exists()
