from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from safeecgmatch.cells import Cell, cells
from safeecgmatch.errors import UserError
from safeecgmatch.methods.parts.temperature import fit_temperature
from safeecgmatch.metrics import METRICS
from safeecgmatch.predictions import final_metrics
from safeecgmatch.reporting.evaluate import METRIC_COLUMNS, evaluate, headline_numbers, write_evaluation
from tests.reporting.conftest import MadeUp
from tests.reporting.synthetic import make_params, write_cell, write_study

ROWS = 4 * (11 + 4)  # settings, methods, readings of SafeECGMatch
NOISE = ("ece_floor", "ece_debiased")
SMALL = {
    "grid": {"datasets": ["ptbxl"], "methods": ["supervised", "safestudent"], "ood_levels": [60], "seeds": [1, 2]},
    "ablation": {"datasets": []},
    "sensitivity": {"datasets": []},
}


def test_one_row_per_cell_branch_scaling_and_metric(study: MadeUp) -> None:
    frame = study.evaluation.metrics
    assert list(frame.columns) == METRIC_COLUMNS
    assert not frame.duplicated(["cell", "branch", "scaling", "metric"]).any()
    assert set(frame["cell"]) == {cell.path for cell in study.cells}
    by_branch = frame[frame["cell"] == "ptbxl/safeecgmatch/60/1"].groupby(["branch", "scaling"])["metric"].apply(set)
    predicted = {(b, s) for b in ("time", "freq", "fused") for s in ("none", "posthoc")}
    chosen = {(b, s) for b in ("time", "freq", "fused") for s in ("last_epoch", "last_five", "own_best")}
    assert set(by_branch.index) == predicted | chosen | {("all", "training")}
    assert by_branch["fused", "none"] == {*METRICS, *NOISE}
    assert by_branch["fused", "posthoc"] == {*METRICS, *NOISE, "temperature"}


def test_rows_equal_final_metrics_of_the_stored_predictions(study: MadeUp) -> None:
    frame = study.evaluation.metrics
    for path in ("ptbxl/fixmatch/30/2", "cinc21/safeecgmatch-no_cal/60/1"):
        with np.load(study.root / "runs" / path / "predictions.npz") as stored:
            predictions = dict(stored)
        rows = frame[(frame["cell"] == path) & frame["reported"] & ~frame["metric"].isin(NOISE)]
        plain = rows[rows["scaling"] == "none"].set_index("metric")["value"]
        assert plain.to_dict() == final_metrics(predictions)
        branch = str(predictions["branch"])
        validation = predictions[f"validation.log_probs.{branch}"]
        temperature = fit_temperature(validation, predictions["validation.label"])
        scaled = rows[rows["scaling"] == "posthoc"].set_index("metric")["value"].to_dict()
        assert scaled == {**final_metrics(predictions, branch, temperature), "temperature": temperature}
        assert scaled["acc"] == plain["acc"]


def test_weights_and_variants_come_from_the_runs_own_config(study: MadeUp) -> None:
    frame = study.evaluation.metrics.drop_duplicates("cell").set_index("cell")
    assert frame.loc["ptbxl/safeecgmatch-lambda_3.0/60/1", ["variant", "lambda_sum"]].tolist() == ["full", 3.0]
    assert frame.loc["cinc21/safeecgmatch-no_cal/60/2", ["variant", "lambda_sum"]].tolist() == ["no_cal", 1.0]
    assert pd.isna(frame.loc["ptbxl/fixmatch/30/1", "lambda_sum"])


def test_headline_names_every_method_and_reading_in_every_setting(study: MadeUp) -> None:
    headline, metrics = headline_numbers(study.evaluation), study.evaluation.metrics
    readings = [f"safeecgmatch{rule}_{branch}" for rule in ("", "-learned_t") for branch in ("fused", "time")]
    for dataset in study.params.grid.datasets:
        for ood in study.params.grid.ood_levels:
            found = headline[f"{dataset}_{ood}"]
            assert set(found) == {*study.params.grid.methods, *readings}
            assert all(set(numbers) == {"acc", "ece"} for numbers in found.values())
    chosen = metrics[(metrics["row"] == "safeecgmatch-learned_t") & (metrics["branch"] == "time")]
    chosen = chosen[(chosen["dataset"] == "cinc21") & (chosen["ood"] == 30) & (chosen["scaling"] == "none")]
    expected = chosen.loc[chosen["metric"] == "ece", "value"].mean()
    assert headline["cinc21_30"]["safeecgmatch-learned_t_time"]["ece"] == pytest.approx(expected)


def test_files_round_trip(study: MadeUp, tmp_path: Path) -> None:
    write_evaluation(study.evaluation, tmp_path / "report")
    assert json.loads((tmp_path / "report" / "headline.json").read_text()) == headline_numbers(study.evaluation)
    back = pd.read_csv(tmp_path / "report" / "metrics.csv")
    assert back["value"].tolist() == study.evaluation.metrics["value"].tolist()
    assert {path.name for path in (tmp_path / "report" / "plots").iterdir()} == {
        "accuracy_ece.csv", "safeecgmatch_validation.csv", "training.csv", "reliability.csv", "roc.csv",
        "refusal.csv", "confusion.csv", "budget.csv", "corpus.csv",
        "sources.csv",
    }  # fmt: skip
    accuracy = study.evaluation.plots["accuracy_ece"]
    assert len(accuracy) == ROWS and not accuracy.isna().any(axis=None) and accuracy["label"].is_unique
    validation = study.evaluation.plots["safeecgmatch_validation"]
    assert list(validation.columns) == ["setting", "iteration", "val_accuracy"]
    by_setting = validation.groupby("setting", sort=False)["iteration"].apply(list).to_dict()
    assert by_setting == {name: [50, 100, 150] for name in ("ptbxl 30 %", "ptbxl 60 %", "cinc21 30 %", "cinc21 60 %")}
    assert not validation.isna().any(axis=None)


def test_plots_add_up_in_every_cell(study: MadeUp) -> None:
    cell = ["dataset", "row", "ood", "seed"]
    counted = study.evaluation.plots["reliability"].groupby(cell)["count"].sum()
    assert set(counted) == {60} and len(counted) == 2 * ROWS
    confused = study.evaluation.plots["confusion"].groupby(cell)["count"].agg(["sum", "size"])
    assert set(confused["sum"]) == {80} and set(confused["size"]) == {4 * 3}


def test_the_area_below_a_roc_curve_is_the_auroc(study: MadeUp) -> None:
    curves = study.evaluation.plots["roc"].set_index(["dataset", "row", "ood", "seed"])
    metrics = study.evaluation.metrics
    chosen = metrics[(metrics["metric"] == "auroc") & (metrics["scaling"] == "none")]
    for row, branch in (("calimatch", "main"), ("fixmatch", "main"), ("safeecgmatch@time", "time")):
        curve = curves.loc[("ptbxl", row, 60, 2)]
        assert curve["fpr"].tolist() == [step / 50 for step in range(51)]
        assert curve["tpr"].is_monotonic_increasing and curve["tpr"].iloc[-1] == 1
        here = chosen[(chosen["cell"] == f"ptbxl/{row.split('@')[0]}/60/2") & (chosen["branch"] == branch)]
        assert np.trapezoid(curve["tpr"], curve["fpr"]) == pytest.approx(here["value"].item(), abs=0.02)


def test_refusal_curve_starts_at_the_accuracy_with_nothing_refused(study: MadeUp) -> None:
    curve = study.evaluation.plots["refusal"].set_index(["dataset", "row", "ood", "seed", "refused"])["accuracy"]
    metrics = study.evaluation.metrics
    rows = metrics[metrics["reported"] & (metrics["cell"] == "ptbxl/calimatch/60/2") & (metrics["scaling"] == "none")]
    value = rows.set_index("metric")["value"]
    for share in (0, 10, 50):
        assert curve["ptbxl", "calimatch", 60, 2, share / 100] == value[f"acc_refusing_{share}"]
    assert 0 < value["aurc"] < 1 - value["acc_refusing_50"] + 0.5


def test_missing_cell_is_a_missing_row(tmp_path: Path) -> None:
    params = make_params(**SMALL)
    write_study(params, tmp_path, records=30)
    shutil.rmtree(tmp_path / "runs" / "ptbxl" / "supervised" / "60" / "2")
    (tmp_path / "tracking" / "ptbxl" / "supervised" / "60" / "1" / "run.json").unlink()
    write_cell(Cell("ptbxl", "fixmatch", 60, 1), params, tmp_path)  # on disk, but not asked for
    result = evaluate(params, tmp_path / "runs", tmp_path / "tracking")
    assert "ptbxl/supervised/60/2" not in set(result.metrics["cell"])
    assert "fixmatch" not in set(result.metrics["method"])
    runs = result.runs.set_index("cell")
    assert runs.loc["ptbxl/supervised/60/2", "state"] == "missing"
    assert pd.isna(runs.loc["ptbxl/supervised/60/1", "run_id"])
    assert runs.loc["ptbxl/safestudent/60/1", ["run_id", "wall_seconds"]].tolist() == ["run1", 12.5]
    assert headline_numbers(result)["cells"] == {"asked": len(cells(params)), "done": len(cells(params)) - 1}


def test_a_trained_cell_counts_before_dvc_has_taken_it_over(tmp_path: Path) -> None:
    params = make_params(**SMALL)
    write_study(params, tmp_path, records=30)
    whole = evaluate(params, tmp_path / "runs", tmp_path / "tracking")
    path, finished = "ptbxl/supervised/60/2", tmp_path / "finished"
    finished.mkdir()
    (tmp_path / "runs" / path).rename(finished / "run")
    (tmp_path / "tracking" / path / "run.json").rename(finished / "run.json")
    result = evaluate(
        params, tmp_path / "runs", tmp_path / "tracking", lambda cell: finished if cell.path == path else None
    )
    pd.testing.assert_frame_equal(result.metrics, whole.metrics)
    pd.testing.assert_frame_equal(result.runs, whole.runs)


@pytest.mark.parametrize(("protocol", "counted"), [("release", False), ("paper", True)])
def test_flagged_seed_counts_as_missing_under_release_only(tmp_path: Path, protocol: str, counted: bool) -> None:
    params = make_params(protocol=protocol, **SMALL)
    for cell in cells(params):
        write_cell(cell, params, tmp_path, 30, no_competitor=cell.method == "safestudent" and cell.seed == 2)
    frame = evaluate(params, tmp_path / "runs", tmp_path / "tracking").metrics
    assert frame.groupby("cell")["counted"].all()["ptbxl/safestudent/60/2"] == counted
    assert frame.groupby("cell")["counted"].all()["ptbxl/safestudent/60/1"]


def one_cell(tmp_path: Path) -> tuple[Path, Path, object]:
    params = make_params(**SMALL)
    write_study(params, tmp_path, records=30)
    return tmp_path / "runs", tmp_path / "runs" / "ptbxl" / "safestudent" / "60" / "1", params


@pytest.mark.parametrize("damage", ["missing file", "truncated", "nan", "run.json", "config"])
def test_a_damaged_cell_is_one_sentence(tmp_path: Path, damage: str) -> None:
    runs, folder, params = one_cell(tmp_path)
    predictions = folder / "predictions.npz"
    config = yaml.safe_load((folder / "config.yaml").read_text())
    if damage == "missing file":
        predictions.unlink()
    elif damage == "truncated":
        predictions.write_bytes(predictions.read_bytes()[:1000])
    elif damage == "nan":
        arrays = dict(np.load(predictions))
        arrays["test.log_probs.main"][0, 0] = np.nan
        np.savez(predictions, **arrays)
    elif damage == "run.json":
        (tmp_path / "tracking" / "ptbxl/safestudent/60/1/run.json").write_text("{")
    (folder / "config.yaml").write_text("just words" if damage == "config" else yaml.safe_dump(config))
    with pytest.raises(UserError, match=r"safestudent/60/1.*dvc repro train@ptbxl-safestudent-60-1"):
        evaluate(params, runs, tmp_path / "tracking")  # type: ignore[arg-type]


def test_nothing_trained_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="dvc repro"):
        evaluate(make_params(**SMALL), tmp_path / "runs", tmp_path / "tracking")
