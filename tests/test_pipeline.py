"""The whole graph on a micro study: trained by the launcher, adopted by DVC, MLflow, tables, experiments, a queue."""

from __future__ import annotations

import csv
import io
import json
import runpy
import shutil
import subprocess
import sys
import time
from unittest.mock import MagicMock

import pandas as pd
import pytest
import yaml

from safeecgmatch.cells import cells
from safeecgmatch.config import load_params
from safeecgmatch.launching.scratch import Scratch
from safeecgmatch.metrics import METRICS
from safeecgmatch.tracking import uploader
from tests.micro import REPORTS, ROOT, micro_params, stages_run
from tests.test_graph import HARMLESS

CELL = "ptbxl/fixmatch/60/1"


def test_one_command_makes_every_cell_and_the_tables(launched):
    project, output = launched
    wanted = cells(load_params(project.root / "params.yaml"))
    assert [cell.stage for cell in wanted] == [stage for stage in stages_run(output) if stage.startswith("train")]
    assert output.count("taken over from scratch") == len(wanted), "DVC trained what was trained"
    for cell in wanted:
        files = sorted(path.name for path in (project.root / "runs" / cell.path).iterdir())
        assert files == [
            "config.yaml", "history.csv", "model.safetensors", "predictions.npz", "summary.json", "trajectory.npz"
        ]  # fmt: skip
    assert {path.name for path in (project.root / REPORTS).iterdir()} == {
        "metrics.csv", "runs.csv", "contrasts.csv", "draws.csv.gz", "headline.json", "plots", "tables", "figures",
        "README.md", "report.html",
    }  # fmt: skip
    for name in ("table1_summary", "table2_ablation", "table3_benchmark", "table4_sensitivity"):
        for ending in (".tex", ".md", ".csv"):
            assert (project.root / REPORTS / "tables" / f"{name}{ending}").stat().st_size > 100
    assert (project.root / REPORTS / "figures" / "tradeoff.png").is_file()
    assert not (project.root / "scratch").exists() or not any((project.root / "scratch").rglob("*.pt"))


def test_stored_cells_of_other_params_are_missing_to_whoever_reports(project):
    """Another width, as after installing another profile: no report is written from the cells that are there."""
    configs = [project.root / "runs" / cell / "config.yaml" for cell in (CELL, "ptbxl/supervised/60/1")]
    whole = [config.read_bytes() for config in configs]
    for config, content in zip(configs, (whole[0][: len(whole[0]) // 2], b""), strict=True):  # cut ones
        config.unlink()
        config.write_bytes(content)
    listed = project.safeecgmatch("cells")
    assert listed.count("reported ") == 2 and "1 of other " in listed and "1 of a damaged config.yaml" in listed
    for config, content in zip(configs, whole, strict=True):
        config.write_bytes(content)
    before = (project.root / REPORTS / "metrics.csv").read_bytes()
    stored = len(cells(load_params(project.root / "params.yaml")))
    project.params(model={"width": 5})
    said = f"{stored} stored cells were passed over as not those of params.yaml: {stored} of other model."
    output = project.safeecgmatch("report", check=False)
    assert "No cell of params.yaml has been trained" in output and said in output
    listed = project.safeecgmatch("cells")
    assert listed.count("missing ") == stored and said in listed
    assert (project.root / REPORTS / "metrics.csv").read_bytes() == before
    methods = micro_params()["methods"]
    methods["fixmatch"]["threshold"] = 0.5
    project.params(methods=methods)
    fixmatch = sum(cell.method == "fixmatch" for cell in cells(load_params(project.root / "params.yaml")))
    output = project.run(sys.executable, "stages/evaluate.py")
    assert f"{fixmatch} stored cells were passed over as not those of params.yaml: {fixmatch} of other hyper." in output
    runs = project.read("runs.csv")
    assert set(runs.loc[runs["state"] == "missing", "method"]) == {"fixmatch"}


def test_a_second_repro_does_nothing(project):
    output = project.run("dvc", "repro")
    assert stages_run(output) == []
    assert "up to date" in output


def test_a_cell_that_was_taken_over_but_not_written_down_is_not_trained_again(project):
    lock, stage = project.root / "dvc.lock", "train@ptbxl-fixmatch-60-1"
    written = yaml.safe_load(lock.read_text())
    others = {name: entry for name, entry in written["stages"].items() if name != stage}
    lock.write_text(yaml.safe_dump(written | {"stages": others}))
    output = project.run("dvc", "repro", stage)
    assert f"Stage '{stage}' is cached - skipping run" in output and stages_run(output) == []
    assert yaml.safe_load(lock.read_text()) == written, "the launcher's lock says what DVC's own would say"


def test_mlflow_has_one_finished_run_per_cell_with_the_metrics_of_the_csv(study):
    runs = study.mlflow_runs()
    baseline = runs[runs["tags.dvc_exp_name"].isna()]
    metrics = study.read("metrics.csv")
    reported = metrics[metrics["reported"] & (metrics["scaling"] == "none")]
    for cell in cells(load_params(study.root / "params.yaml")):
        mine = baseline[baseline["tags.cell"] == cell.path]
        assert len(mine) == 1, cell.path
        assert mine["status"].item() == "FINISHED"
        rows = reported[(reported["cell"] == cell.path) & reported["metric"].isin(METRICS)].set_index("metric")["value"]
        assert len(rows) >= 8
        for metric, value in rows.items():
            assert mine[f"metrics.test/{metric}"].item() == pytest.approx(value, abs=1e-9), (cell.path, metric)


def test_the_run_records_point_back_to_commit_and_config(study):
    record = json.loads((study.root / "tracking" / CELL / "run.json").read_text())
    config = yaml.safe_load((study.root / "runs" / CELL / "config.yaml").read_text())
    assert record["config_hash"] == config["config_hash"]
    assert record["dvc_stage"] == "train@ptbxl-fixmatch-60-1"
    assert len(record["commit"]) == 40
    assert record["run_id"] in set(study.read("runs.csv")["run_id"])


def files_of(project, path: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (project.root / "runs" / path).iterdir()}


def test_an_edited_result_is_refused_and_a_cell_made_again_by_dvc_alone_has_the_same_bytes(project):
    before = files_of(project, CELL)
    fingerprint = yaml.safe_load(before["config.yaml"])["fingerprint"]
    scratch = Scratch(project.root / "scratch" / CELL / fingerprint)
    with scratch.sealing(fingerprint) as folder:  # as if it waited for DVC
        shutil.copytree(project.root / "runs" / CELL, folder / "run", copy_function=shutil.copyfile)
        shutil.copyfile(project.root / "tracking" / CELL / "run.json", folder / "run.json")
    weights = scratch.finished / "run" / "model.safetensors"
    *content, last = weights.read_bytes()
    weights.write_bytes(bytes([*content, last ^ 1]))
    output = project.run("dvc", "repro", "-f", "-s", "train@ptbxl-fixmatch-60-1")
    assert "was truncated or edited after it was written (run/model.safetensors); it is not used." in output
    assert "6/6 iterations" in output and files_of(project, CELL) == before
    assert scratch.finished.is_dir(), "a stage cannot know whether DVC will record it"
    assert "0 of them to be trained" in project.safeecgmatch("run", CELL) and not scratch.folder.exists()


@pytest.mark.slow
def test_a_failed_cell_costs_itself_alone_and_nothing_is_trained_twice(project):
    content = micro_params()
    content["methods"]["fixmatch"]["threshold"] = 0.9
    project.params(**content | {"lambda_sum": 2.0})
    file, broken = "src/safeecgmatch/methods/fixmatch/method.py", "\nMETHOD.losses = None\n"
    project.edit((file, "", broken))
    dry = project.safeecgmatch("run", "--dry-run")
    assert "3 of them to be trained" in dry and "hours of training" in dry and CELL in dry
    output = project.safeecgmatch("run", "--jobs", "2", check=False)
    assert f"{CELL} failed (exit status 1)" in output and "'NoneType' object is not callable" in output
    assert "2 of 7 cells failed, so evaluate and tables were not run" in output
    trained = [stage for stage in stages_run(output) if stage.startswith("train")]
    assert trained == ["train_safeecgmatch@ptbxl-60-1"] and "taken over from scratch" in output
    project.params(lambda_sum=2.0)
    project.edit((file, broken, ""))
    project.safeecgmatch("run", "code")
    assert "0 of them to be trained" in project.safeecgmatch("run", "--dry-run")
    project.params()
    again = project.safeecgmatch("run")
    assert "0 of them to be trained" in again, "DVC's run cache holds the cells of the first params"
    assert not [stage for stage in stages_run(again) if stage.startswith("train")]


TRAIN = """
import runpy, sys
from unittest.mock import MagicMock
from safeecgmatch.launching import train_cell
from safeecgmatch.tracking import uploader
train_cell.SECONDS_BETWEEN_PROGRESS = 0.0
uploader.Following = MagicMock()
runpy.run_path("stages/train.py")["main"](sys.argv[1])
"""


@pytest.mark.slow
def test_a_checkpoint_survives_harmless_edits_and_is_refused_after_a_real_one(project):
    content = micro_params()
    content["train"] |= {"iterations": 10**6, "epoch": 10**5}
    scratch = project.root / "scratch" / CELL

    def train_a_while() -> tuple[dict, str]:
        """The stage without MLflow, stopped after its first iterations; its progress, and what it printed."""
        for file in scratch.glob("*/progress.json"):
            file.unlink()
        process = subprocess.Popen(
            [sys.executable, "-c", TRAIN, CELL],
            cwd=project.root,
            env=project.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        while not (found := list(scratch.glob("*/progress.json"))):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.2)
        process.terminate()
        output = process.communicate()[0]
        assert process.returncode == 143 and "run the same command again to go on" in output
        return json.loads(found[0].read_text()), output

    project.params(**content)
    assert train_a_while()[0]["begun_at"] == 0
    project.edit(*HARMLESS)
    progress, output = train_a_while()
    assert progress["begun_at"] > 0 and "not used" not in output
    project.edit(("src/safeecgmatch/methods/fixmatch/method.py", "", "\nSHARE = 0.5\n"))
    progress, output = train_a_while()
    assert progress["begun_at"] == 0
    assert "holds a checkpoint of other code (safeecgmatch.methods.fixmatch.method); it is not used." in output


@pytest.mark.slow
def test_an_experiment_with_another_weight_and_without_a_method_trains_safeecgmatch_alone(project):
    changes = ["-S", "lambda_sum=3", "-S", "grid.methods=[supervised]", "-S", "arms.seen_pool.methods=[]"]
    output = project.run("dvc", "exp", "run", *changes, "--name", "heavy")
    assert stages_run(output) == ["train_safeecgmatch@ptbxl-60-1", "evaluate", "tables"]
    # FixMatch is gone; CaliMatch is the time branch of learned_t.
    assert set(project.read("metrics.csv")["method"]) == {"supervised", "calimatch", "safeecgmatch"}
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


def test_a_wrong_key_of_a_method_stops_its_cell_with_one_sentence(project, monkeypatch):
    content = micro_params()
    content["methods"]["fixmatch"]["treshold"] = 0.9
    project.params(**content)
    monkeypatch.chdir(project.root)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.setattr(uploader, "Following", MagicMock())  # there is nothing to follow
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "stages" / "train.py"))["main"](CELL)
    sentence = "params.yaml, methods.fixmatch: unknown key 'treshold'; allowed here are threshold"
    assert isinstance(end.value.code, str) and sentence in end.value.code and "\n" not in end.value.code


@pytest.mark.slow
def test_a_queued_sweep_runs_in_parallel_and_is_shown_side_by_side(project):
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
    sweep = runs[runs["params.cell.lambda_sum"].isin(["0.3333", "2.0"]) & runs["tags.dvc_exp_name"].notna()]
    assert len(sweep) == 2 and (sweep["status"] == "FINISHED").all()
