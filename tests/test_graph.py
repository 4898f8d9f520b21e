"""dvc.yaml: what each stage depends on, and which edits train a cell again."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml

from tests.conftest import ROOT
from tests.micro import Project

STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
PACKAGE = "src/safeecgmatch"
PROPOSED = {
    "train_safeecgmatch@ptbxl-60-1", "train_reading@ptbxl-learned_t-60-1", "train_ablation@ptbxl-no_cal-60-1",
    "train_sensitivity@ptbxl-3.0-60-1",
}  # fmt: skip
FIXMATCH = {"train@ptbxl-fixmatch-60-1", "train_seen_pool@ptbxl-fixmatch-1"}


def test_every_cell_depends_on_its_methods_fingerprint():
    for stage in ("train", "train_seen_pool", "train_val150"):
        assert "data/code/methods/${item.method}.json" in STAGES[stage]["deps"]
    assert "data/code/methods/safeecgmatch.json" in STAGES["train_safeecgmatch"]["deps"]
    assert set(STAGES["code"]["deps"]) == {"src/safeecgmatch", "stages"}
    assert {"protocol", "methods"} <= set(STAGES["code"]["params"])


@pytest.mark.parametrize("stage", ["train_reading", "train_ablation", "train_variant", "train_sensitivity"])
def test_the_stages_of_safeecgmatch_have_the_same_code(stage):
    assert STAGES[stage]["deps"] == STAGES["train_safeecgmatch"]["deps"]


def test_only_safeecgmatch_depends_on_the_weight_of_the_frequency_branch():
    with_weight = [name for name, stage in STAGES.items() if "lambda_sum" in stage.get("params", [])]
    assert with_weight == ["train_safeecgmatch", "evaluate", "tables"]


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import safeecgmatch.cli", "torch mlflow dvc pandas numpy"),
        (
            "import safeecgmatch.engine.signal_store, safeecgmatch.engine.split_files",
            "torch pandas sklearn scipy wfdb matplotlib",
        ),
        ("import safeecgmatch.launching.train_cell", "pandas sklearn matplotlib mlflow scipy wfdb"),
        ("import safeecgmatch.metrics, safeecgmatch.predictions", "torch pandas scipy sklearn matplotlib"),
        ("import safeecgmatch.reporting.evaluate", "torch mlflow matplotlib"),
        ("sys.path.insert(0, 'stages'); import train, safeecgmatch.engine.fingerprint", "torch numpy mlflow rich"),
    ],
    ids=["command line", "store", "training", "metrics", "evaluate", "taking over"],
)
def test_what_starts_often_imports_no_heavy_library(statement: str, absent: str) -> None:
    script = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & set(absent.split())


def test_only_tracking_imports_mlflow_and_only_its_store_speaks_to_runs():
    files = (ROOT / PACKAGE).rglob("*.py")
    words = ("import mlflow", "from mlflow")
    found = {file for file in files if any(line.startswith(words) for line in file.read_text().splitlines())}
    assert {file.parent.name for file in found} == {"tracking"}
    assert {file.name for file in found if "MlflowClient" in file.read_text()} == {"store.py"}


HARMLESS = [
    (f"{PACKAGE}/{file}", old, new)
    for file, old, new in (
        ("engine/loop.py", "", "# a remark\n"),
        ("engine/loop.py", "Train to the end of", "Go on to the end of"),  # a docstring
        ("methods/fixmatch/method.py", '"""', '"""Indeed: '),
        ("methods/parts/losses.py", "", "\n# a remark\n"),
        ("metrics.py", "", "\n\ndef half() -> float:\n    return 0.5\n"),
        ("reporting/tables.py", "", "\n\ndef empty_table() -> list[str]:\n    return []\n"),
        ("launching/local.py", "SECONDS_BETWEEN_TICKS = 0.2", "SECONDS_BETWEEN_TICKS = 0.3"),
        ("launching/train_cell.py", "PROGRESS = 2.0", "PROGRESS = 3.0"),
        ("tracking/uploader.py", "LOOKS = 2.0", "LOOKS = 3.0"),
        ("progress.py", "SECONDS_BETWEEN_LINES = 15.0", "SECONDS_BETWEEN_LINES = 5.0"),
        ("cli.py", "Everything that was asked for", "All that was asked for"),
    )
]


@pytest.mark.slow  # tests/engine/test_fingerprint.py is quicker
def test_an_edit_trains_a_method_and_those_built_on_it_or_nothing(project: Project):
    """Comments and docstrings of what decides; a metric, a table, launcher, tracking, progress, command line; then a
    number in a method that no cell asks for, in one that two stages train, in one that SafeECGMatch is built on."""
    project.edit(*HARMLESS, ("stages/train.py", "", "\nUNUSED = 1\n"))
    stale: set[str] = set()
    for method, more in (("scomatch", set()), ("fixmatch", FIXMATCH), ("calimatch", PROPOSED)):
        project.edit((f"{PACKAGE}/methods/{method}/method.py", "", "\nSHARE = 0.5\n"))
        stale |= more
        assert project.stale() == stale, method
