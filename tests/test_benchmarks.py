"""Every benchmark runs, at a size of a second or two: what it prints is looked at, not how fast it is here."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.micro import Project

BENCHMARKS = ROOT / "benchmarks"
TESTED = {
    "adoption", "cell_overhead", "full_budget", "gpu_plan", "ingest", "open_set", "predict", "propagation", "report",
    "same_runs", "train_step", "upload",
}  # fmt: skip


class Here:
    """Runs a benchmark in this process, which has imported torch, and gives what it printed."""

    def __init__(self, patches: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]) -> None:
        self.patches, self.captured = patches, captured
        patches.syspath_prepend(BENCHMARKS)  # as Python does for a script

    def __call__(self, name: str, *arguments: str, may_fail: bool = False) -> str:
        script = BENCHMARKS / f"{name}.py"
        self.patches.setattr(sys, "argv", [str(script), *arguments])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(script), run_name="__main__")
        assert not end.value.code or may_fail, end.value.code
        return self.captured.readouterr().out


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    return Here(monkeypatch, capsys)


def alone(name: str, *arguments: str, cwd: Path) -> str:
    """For benchmarks that change the environment or start processes; those that miss their limit here exit with 1."""
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_no_benchmark_is_left_out() -> None:
    scripts = {file.stem for file in BENCHMARKS.glob("*.py") if '__name__ == "__main__"' in file.read_text()}
    assert scripts == TESTED


def test_adoption(tmp_path: Path) -> None:
    printed = alone("adoption", "5", "--few", "1", "--megabytes", "0.01", cwd=tmp_path)
    assert "a study of 5 cells" in printed and "once more, nothing to do" in printed


def test_cell_overhead(study: Project) -> None:
    printed = alone("cell_overhead", "ptbxl/supervised/60/1", "--iterations", "2", "--repeats", "1", cwd=study.root)
    assert "cell with 4 iterations" in printed and "fixed cost of the cell" in printed


def test_full_budget(here: Here, tmp_path: Path) -> None:
    before = tmp_path / "before.txt"
    before.write_text("supervised paper 0-20 0123456789abcdef\n")
    printed = here("full_budget", "--only", "supervised", "--before", str(before))
    assert "0 of 20 states equal; 0 of 2 methods x protocols" in printed
    assert "changed: supervised paper from supervised paper 0-20" in printed


def test_gpu_plan(here: Here) -> None:
    printed = here("gpu_plan", "--only", "supervised")
    assert re.search(r"\| supervised \| [1-9]\d+ \|", printed) and "12 cells of 50000 iterations" in printed


def test_ingest(tmp_path: Path) -> None:
    """Starting the processes takes most of the time, so the ratio is far from what is required."""
    options = ("--records", "100", "--sample", "10", "--repeats", "1", "--scratch", str(tmp_path))
    printed = alone("ingest", *options, cwd=tmp_path)
    assert "100 records, 75 kept and read" in printed
    for line in ("filter, whole", "plain wfdb.rdsamp", "ratio", "others used", "GB anonymous", "GB store"):
        assert line in printed


def test_open_set(here: Here, study: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(study.root)
    printed = here("open_set", "--starts", "0.1,0.5", "--seeds", "1", "--iterations", "10")
    assert "10 iterations at 0.006, mean of 1 seeds" in printed and "AUROC of its S" in printed


def test_predict(here: Here, study: Project) -> None:
    cell, records = study.root / "runs/ptbxl/safeecgmatch/60/1", study.root / "data/raw/ptbxl.phantom/records100"
    printed = here("predict", str(cell), str(records), "--rounds", "1", may_fail=True)
    assert re.search(r"wall: predict [\d.]+ ms, bare network [\d.]+ ms", printed) and "CPU: predict" in printed


def test_propagation(here: Here) -> None:
    assert "1000 nodes,  64 dimensions, k = 40" in here("propagation", "--most", "1000")


def test_report(here: Here) -> None:
    printed = here("report", "--small", "--records", "20")
    assert re.search(r"6 cells of 20 records: evaluate [\d.]+ s, tables [\d.]+ s", printed)


def test_same_runs(here: Here, study: Project, tmp_path: Path) -> None:
    cell = study.root / "runs/ptbxl/supervised/60/1"
    assert "model.safetensors  1 equal, 0 differ, 0 on one side only" in here("same_runs", str(cell), str(cell))
    (tmp_path / "history.csv").write_text("other\n")
    printed = here("same_runs", str(cell), str(tmp_path), may_fail=True)
    assert "history.csv        0 equal, 1 differ" in printed and "line 1: 'iteration" in printed
    assert "model.safetensors  0 equal, 0 differ, 1 on one side only" in printed


def test_train_step_methods(here: Here) -> None:
    options = ("--width", "2", "--rounds", "1", "--records", "400", "--threads", "1")
    printed = here("train_step", "methods", "--only", "fixmatch,safeecgmatch", *options)
    assert re.search(r"fixmatch .* ratio +[\d.]+ \(96 inputs\)\nsafeecgmatch .* \(256 inputs\)", printed)


@pytest.mark.parametrize(
    ("command", "options", "line"),
    [
        ("host", ("--rounds", "1", "--records", "400"), "host side"),
        ("memory", ("--width", "2", "--iterations", "1", "--records", "400"), "peak anonymous memory"),
        ("pool", ("--rounds", "1", "--large", "2000"), "2,000 records"),
    ],
)
def test_train_step(here: Here, command: str, options: tuple[str, ...], line: str) -> None:
    assert line in here("train_step", command, *options, "--threads", "1")


def test_upload(tmp_path: Path) -> None:
    printed = alone(
        "upload", "--method", "supervised", "--seconds", "0.5", "--rounds", "1", "--width", "4", cwd=tmp_path
    )
    assert "with upload" in printed and "the uploading thread" in printed
