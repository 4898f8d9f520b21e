"""dvc.yaml: what each stage depends on, and which edits train a cell again."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml

from tests.conftest import ROOT
from tests.micro import Project, micro_params

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


def test_what_cannot_change_a_prediction_trains_nothing_again(project: Project):
    """Comments and docstrings of what decides; a metric, a table, launcher, tracking, progress, command line."""
    project.edit(*HARMLESS, ("stages/train.py", "", "\nUNUSED = 1\n"))
    assert project.stale() == set()


@pytest.mark.parametrize(
    ("method", "stale"),
    [("fixmatch", FIXMATCH), ("calimatch", PROPOSED), ("scomatch", set())],
)
def test_a_number_in_a_method_trains_that_method_and_those_built_on_it(project: Project, method, stale):
    project.edit((f"{PACKAGE}/methods/{method}/method.py", "", "\nSHARE = 0.5\n"))
    assert project.stale() == stale


NEW_METHOD = {
    "__init__.py": "",
    "protocol.yaml": "batch_order: {paper: reshuffled, release: fixed, why: as the others}\n"
    "stop_at_val_1: {paper: false, release: false, why: as the others}\n",
    "losses.py": "def squared(logits, labels):\n"
    "    return (logits.softmax(1).gather(1, labels[:, None]) - 1).square().mean()\n",
    "views.py": "def louder(x):\n    return 1.1 * x\n",
    "method.py": "from safeecgmatch.engine.contract import Losses\n"
    "from safeecgmatch.engine.method import SingleNetwork\n"
    "from safeecgmatch.methods.louder.losses import squared\n"
    "from safeecgmatch.methods.louder.views import louder\n\n\n"
    "class Louder(SingleNetwork):\n"
    "    def losses(self, batch, n):\n"
    "        loss = squared(self.network(louder(batch.x_l)), batch.y_l)\n"
    '        yield Losses(loss, {"squared": loss})\n\n\n'
    "METHOD = Louder\n",
}


def test_a_new_method_with_its_own_loss_and_view_is_all_that_is_trained(project: Project):
    folder = project.root / PACKAGE / "methods" / "louder"
    folder.mkdir()
    for name, text in NEW_METHOD.items():
        (folder / name).write_text(text)
    params = micro_params()
    params["grid"]["methods"].append("louder")
    params["methods"]["louder"] = {"switches": {}}
    project.params(**params)
    assert project.stale() == {"train@ptbxl-louder-60-1"}
    output = project.safeecgmatch("run", "train@ptbxl-louder-60-1")
    assert "1 training cells, 1 of them to be trained." in output
    assert (project.root / "runs/ptbxl/louder/60/1/predictions.npz").is_file()
