"""The steps of CONTRIBUTING.md, followed: a method, a metric, an OOD level (a dataset: tests/stages)."""

from __future__ import annotations

import json
import sys

import pytest

from safeecgmatch.files import read_yaml
from tests.micro import REPORTS, Project, micro_params

PACKAGE = "src/safeecgmatch"
BASE, NAMES = "profiles/base.yaml", f"{PACKAGE}/reporting/names.yaml"
METHOD = {
    "__init__.py": "",
    "protocol.yaml": "batch_order: {paper: reshuffled, release: fixed, why: As the others.}\n"
    "stop_at_val_1: {paper: false, release: false, why: As the others.}\n",
    "losses.py": "def squared(logits, labels):\n"
    "    return (logits.softmax(1).gather(1, labels[:, None]) - 1).square().mean()\n",
    "views.py": "def louder(x, by):\n    return by * x\n",
    "method.py": "from safeecgmatch.config import Scale\n"
    "from safeecgmatch.engine.contract import Losses\n"
    "from safeecgmatch.engine.method import Hyper, SingleNetwork\n"
    "from safeecgmatch.methods.louder.losses import squared\n"
    "from safeecgmatch.methods.louder.views import louder\n\n\n"
    "class LouderHyper(Hyper):\n"
    "    by: Scale\n\n\n"
    "class Louder(SingleNetwork):\n"
    "    Hyper = LouderHyper\n\n"
    "    def losses(self, batch, n):\n"
    "        loss = squared(self.network(louder(batch.x_l, self.hyper.by)), batch.y_l)\n"
    '        yield Losses(loss, {"squared": loss})\n\n\n'
    "METHOD = Louder\n",
}
CELL = "train@ptbxl-louder-60-1"


@pytest.fixture
def louder(project: Project) -> Project:
    """Steps 1 to 4 of adding a method, in the micro study."""
    folder = project.root / PACKAGE / "methods" / "louder"
    folder.mkdir()
    for name, text in METHOD.items():
        (folder / name).write_text(text)
    project.edit(
        (BASE, "calimatch]", "calimatch, louder]"),
        (BASE, "  supervised: {switches: {}}", "  supervised: {switches: {}}\n  louder: {by: 1.1, switches: {}}"),
        (NAMES, "further_methods:", "further_methods:\n  louder: {name: Louder}"),
    )
    project.safeecgmatch("profile", "demo", "--force")
    installed = read_yaml(project.root / "params.yaml")
    assert "louder" in installed["grid"]["methods"]
    params = micro_params()
    params["grid"]["methods"].append("louder")
    params["methods"]["louder"] = installed["methods"]["louder"]
    project.params(**params)
    return project


def test_a_new_method_with_its_own_loss_and_view_is_all_that_is_stale(louder: Project) -> None:
    assert louder.stale() == {CELL}


@pytest.mark.slow
def test_a_new_method_is_trained_and_in_the_report(louder: Project) -> None:
    output = louder.safeecgmatch("run", CELL)
    assert "1 training cells, 1 of them to be trained." in output
    assert (louder.root / "runs/ptbxl/louder/60/1/predictions.npz").is_file()
    louder.safeecgmatch("report")
    assert {"louder", "safeecgmatch_fused"} <= set(headline(louder)["ptbxl_60"])
    assert "Louder" in (louder.root / REPORTS / "README.md").read_text()


@pytest.mark.slow
def test_what_a_new_method_lacks_is_said_before_anything_is_trained(louder: Project) -> None:
    """One of the sentences of tests/stages/test_code.py, through DVC's graph."""
    louder.edit((f"{PACKAGE}/methods/louder/method.py", "METHOD = Louder", ""))
    output = louder.run("dvc", "repro", CELL, check=False)
    assert "louder/method.py names no subclass of Method as METHOD; add `METHOD = YourMethod` at its end." in output
    assert "failed to reproduce 'code'" in output and "Traceback" not in output


def headline(project: Project) -> dict:
    return json.loads((project.root / REPORTS / "headline.json").read_text())


@pytest.fixture
def metric(project: Project) -> Project:
    function = (
        "def worst_recall(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:\n"
        "    predicted, true = np.argmax(probabilities, axis=1), np.asarray(labels)\n"
        "    return float(min(np.mean(predicted[true == k] == k) for k in np.unique(true)))\n\n\n"
    )
    project.edit(
        (f"{PACKAGE}/metrics.py", "def nll(", f"{function}def nll("),
        (f"{PACKAGE}/metrics.py", '    "brier": brier,\n', '    "brier": brier,\n    "worst_recall": worst_recall,\n'),
        (NAMES, "metrics:\n", "metrics:\n  worst_recall: {name: Worst recall, best: high}\n"),
        (f"{PACKAGE}/reporting/catalogue.py", '"nll", "brier")', '"nll", "brier", "worst_recall")'),
    )
    return project


def test_a_new_metric_has_values_and_nothing_is_trained(metric: Project) -> None:
    assert metric.stale() == set()
    metric.run(sys.executable, "stages/evaluate.py")
    values = metric.read("metrics.csv").set_index("metric")["value"]["worst_recall"]
    assert len(values) and values.between(0, 1).all()


@pytest.mark.slow
def test_a_new_metric_is_in_the_report(metric: Project) -> None:
    metric.safeecgmatch("report")
    assert "Worst recall" in (metric.root / REPORTS / "README.md").read_text()


LEVEL = {f"{stage}-45-1" for stage in ("train@ptbxl-supervised", "train@ptbxl-fixmatch", "train_safeecgmatch@ptbxl",
                                       "train_reading@ptbxl-learned_t")}  # fmt: skip


@pytest.fixture
def level(project: Project) -> Project:
    project.edit((BASE, "ood_levels: [30, 60]", "ood_levels: [30, 45, 60]"))
    project.safeecgmatch("profile", "demo", "--force")
    assert read_yaml(project.root / "params.yaml")["grid"]["ood_levels"] == [30, 45, 60]
    project.params(grid=micro_params()["grid"] | {"ood_levels": [45, 60]})
    return project


def test_a_new_level_is_all_that_is_trained(level: Project) -> None:
    assert level.stale() == LEVEL


@pytest.mark.slow
def test_a_new_level_is_in_the_report_and_in_every_plot(level: Project) -> None:
    output = level.safeecgmatch("run")
    assert f"{len(LEVEL)} of them to be trained." in output
    assert {"ptbxl_45", "ptbxl_60"} <= set(headline(level))
    shown = json.loads(level.run("dvc", "plots", "show", "--json"))
    [panel] = shown["data"]["validation accuracy of SafeECGMatch"]
    assert {point["setting"] for point in panel["content"]["data"]["values"]} == {"ptbxl 45 %", "ptbxl 60 %"}
