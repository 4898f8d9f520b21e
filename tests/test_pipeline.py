"""The whole graph on a micro profile, in a project of its own: DVC, MLflow, tables, an experiment, a queue."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from safeecgmatch.cells import cells
from safeecgmatch.config import load_params
from safeecgmatch.metrics import METRICS
from tests.conftest import ROOT

REPORTS = Path("reports/micro/paper")


def micro_params() -> dict:
    content = yaml.safe_load((ROOT / "params.yaml").read_text())
    content["profile"] = "micro"
    content["grid"] = {"datasets": ["ptbxl"], "methods": ["supervised", "fixmatch"], "ood_levels": [60], "seeds": [1]}
    content["ablation"] |= {"datasets": ["ptbxl"], "variants": ["no_cal"]}
    content["sensitivity"] |= {"lambda_sums": [3.0]}
    content["data"]["phantom"] = {"records": 300, "seed": 7}
    content["data"]["ptbxl"] |= {"labels_per_class": 8, "pool_size": 80}
    content["model"]["width"] = 4
    content["train"] |= {"iterations": 6, "evaluate_every": 2, "batch": 8}
    content["checkpoint_every"] = 4
    return content


class Project:
    """A copy of this project under its own Git and DVC, with the tools of this Python."""

    def __init__(self, root: Path) -> None:
        self.root = root
        foreign = ("DVC_", "MLFLOW_", "SAFEECGMATCH_", "GIT_")
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        self.environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment["OMP_NUM_THREADS"] = "1"
        for role in ("AUTHOR", "COMMITTER"):
            self.environment |= {f"GIT_{role}_NAME": "test", f"GIT_{role}_EMAIL": "test@example.org"}

    def run(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(
            command, cwd=self.root, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert not check or done.returncode == 0, done.stdout
        return done.stdout

    def commit(self, message: str) -> None:
        self.run("git", "add", "-A")
        self.run("git", "commit", "-q", "-m", message)

    def params(self, **changes: object) -> None:
        (self.root / "params.yaml").write_text(yaml.safe_dump(micro_params() | changes, sort_keys=False))

    def read(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self.root / REPORTS / name)

    def mlflow_runs(self) -> pd.DataFrame:
        script = (
            "import mlflow, sys; mlflow.set_tracking_uri('sqlite:///mlflow.db');"
            "mlflow.search_runs(search_all_experiments=True, output_format='pandas').to_csv(sys.stdout)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=self.root, env=self.environment, text=True, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        return pd.read_csv(io.StringIO(done.stdout))


def stages_run(output: str) -> list[str]:
    return [line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage '")]


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Project:
    root = tmp_path_factory.mktemp("project")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if not name.startswith(("tests/", "reports/", "docs/")) and name != "dvc.lock" and (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
    project = Project(root)
    project.params()
    project.run("git", "init", "-q", "-b", "main")
    project.commit("micro")
    project.first_output = project.run("dvc", "repro")  # type: ignore[attr-defined]
    project.commit("reproduced")
    return project


def test_one_command_makes_every_cell_and_the_tables(project):
    wanted = cells(load_params(project.root / "params.yaml"))
    ran = stages_run(project.first_output)
    assert [cell.stage for cell in wanted] == [stage for stage in ran if stage.startswith("train")]
    for cell in wanted:
        files = sorted(path.name for path in (project.root / "runs" / cell.path).iterdir())
        assert files == ["config.yaml", "history.csv", "model.safetensors", "predictions.npz", "summary.json"]
    for name in ("table1_summary", "table2_ablation", "table3_benchmark", "table4_sensitivity"):
        for ending in (".tex", ".md", ".csv"):
            assert (project.root / REPORTS / "tables" / f"{name}{ending}").stat().st_size > 100
    assert (project.root / REPORTS / "figures" / "tradeoff.png").is_file()
    assert not (project.root / "scratch").exists() or not any((project.root / "scratch").rglob("*.pt"))


def test_a_second_repro_does_nothing(project):
    output = project.run("dvc", "repro")
    assert stages_run(output) == []
    assert "up to date" in output


def test_mlflow_has_one_finished_run_per_cell_with_the_metrics_of_the_csv(project):
    runs = project.mlflow_runs()
    baseline = runs[runs["tags.dvc_exp_name"].isna()]
    metrics = project.read("metrics.csv")
    reported = metrics[metrics["reported"] & (metrics["scaling"] == "none")]
    for cell in cells(load_params(project.root / "params.yaml")):
        mine = baseline[baseline["tags.cell"] == cell.path]
        assert len(mine) == 1, cell.path
        assert mine["status"].item() == "FINISHED"
        rows = reported[(reported["cell"] == cell.path) & reported["metric"].isin(METRICS)].set_index("metric")["value"]
        assert len(rows) >= 8
        for metric, value in rows.items():
            assert mine[f"metrics.test.{metric}"].item() == pytest.approx(value, abs=1e-9), (cell.path, metric)


def test_the_run_records_point_back_to_commit_and_config(project):
    record = json.loads((project.root / "tracking/ptbxl/fixmatch/60/1/run.json").read_text())
    config = yaml.safe_load((project.root / "runs/ptbxl/fixmatch/60/1/config.yaml").read_text())
    assert record["config_hash"] == config["config_hash"]
    assert record["dvc_stage"] == "train@ptbxl-fixmatch-60-1"
    assert len(record["commit"]) == 40
    runs = project.read("runs.csv")
    assert record["run_id"] in set(runs["run_id"])


def test_a_cell_made_again_has_the_same_bytes(project):
    folder = project.root / "runs/ptbxl/fixmatch/60/1"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    project.run("dvc", "repro", "-f", "-s", "train@ptbxl-fixmatch-60-1")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_an_experiment_with_another_weight_reruns_safeecgmatch_alone(project):
    project.run("git", "checkout", "-q", ".")
    project.run("dvc", "checkout", "-q")
    output = project.run("dvc", "exp", "run", "-S", "lambda_sum=3", "--name", "heavy")
    assert stages_run(output) == ["train_safeecgmatch@ptbxl-60-1", "evaluate", "tables"]
    full = project.read("metrics.csv").query("method == 'safeecgmatch' and variant == 'full' and metric == 'acc'")
    assert set(full["lambda_sum"]) == {3.0}
    sensitivity = pd.read_csv(project.root / REPORTS / "tables" / "table4_sensitivity.csv", dtype={"row": str})
    assert sensitivity.loc[sensitivity["row"] == "1", "mean"].isna().all()
    assert sensitivity.loc[sensitivity["row"] == "3", "mean"].notna().all()
    printed = (project.root / REPORTS / "tables" / "table4_sensitivity.tex").read_text()
    assert printed.split("=1$")[1].split("=3$")[0].count("& --") == 4
    shown = project.run("dvc", "exp", "show", "--csv")
    assert "heavy" in shown
    runs = project.mlflow_runs()
    assert set(runs.loc[runs["tags.dvc_exp_name"] == "heavy", "tags.cell"]) == {"ptbxl/safeecgmatch/60/1"}
    old = runs[(runs["tags.cell"] == "ptbxl/safeecgmatch/60/1") & runs["tags.dvc_exp_name"].isna()]
    assert "tags.superseded" not in old or old["tags.superseded"].isna().all(), "a sweep never supersedes its baseline"
    project.run("git", "checkout", "-q", ".")
    project.run("dvc", "checkout", "-q")


def test_a_method_taken_out_of_params_leaves_the_tables(project):
    content = micro_params()
    content["grid"]["methods"] = ["supervised"]
    project.params(**content)
    output = project.run("dvc", "repro")
    assert stages_run(output) == ["evaluate", "tables"]
    assert set(project.read("metrics.csv")["method"]) == {"supervised", "safeecgmatch"}
    project.run("git", "checkout", "-q", ".")
    project.run("dvc", "checkout", "-q")


def test_a_wrong_key_of_a_method_stops_its_cell_with_one_sentence(project):
    content = micro_params()
    content["methods"]["fixmatch"]["treshold"] = 0.9
    project.params(**content)
    output = project.run(sys.executable, "stages/train.py", "ptbxl/fixmatch/60/1", check=False)
    assert "params.yaml, methods.fixmatch: unknown key 'treshold'; allowed here are threshold" in output
    assert "Traceback" not in output
    project.run("git", "checkout", "-q", ".")


@pytest.mark.slow
def test_a_queued_sweep_runs_in_parallel_and_stands_side_by_side(project):
    project.run("dvc", "exp", "run", "--queue", "-S", "lambda_sum=0.3333,2")
    project.run("dvc", "queue", "start", "-j", "2")
    project.run("dvc", "queue", "logs", "--help")
    for _ in range(120):
        status = project.run("dvc", "queue", "status")
        if "Running" not in status and "Queued" not in status:
            break
        subprocess.run(["sleep", "2"], check=True)
    assert status.count("Success") == 2, status
    shown = list(csv.DictReader(io.StringIO(project.run("dvc", "exp", "show", "--csv"))))
    weights = {row["lambda_sum"] for row in shown if row.get("Experiment")}
    assert {"0.3333", "2"} <= {f"{float(weight):g}" for weight in weights if weight}
    runs = project.mlflow_runs()
    sweep = runs[runs["params.cell.lambda_sum"].isin([0.3333, 2.0]) & runs["tags.dvc_exp_name"].notna()]
    assert len(sweep) == 2 and (sweep["status"] == "FINISHED").all()
