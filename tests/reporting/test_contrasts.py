from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from safeecgmatch.cells import Cell, cells
from safeecgmatch.cli import app
from safeecgmatch.predictions import read_arrays
from safeecgmatch.reporting.contrasts import Sample, contrast_frame, draw_frame, placebo, rows_by_setting, wanted_pairs
from safeecgmatch.reporting.evaluate import evaluate, metric_rows, write_evaluation
from safeecgmatch.reporting.stored import load_cell
from safeecgmatch.reporting.study import Study, read_study
from safeecgmatch.reporting.terminal import claim_text
from safeecgmatch.reporting.verdicts import judge, notes
from tests.reporting.conftest import MadeUp
from tests.reporting.planted import OTHERS, ROWS
from tests.reporting.synthetic import log_softmax, make_params, write_cell


def value(study: MadeUp, cell: str, branch: str, metric: str, scaling: str = "none") -> float:
    frame = study.evaluation.metrics
    chosen = frame[(frame["cell"] == cell) & (frame["branch"] == branch) & (frame["metric"] == metric)]
    return float(chosen.loc[chosen["scaling"] == scaling, "value"].iloc[0])


@pytest.mark.parametrize(
    ("metric", "scaling", "sign"), [("acc", "none", 1), ("ece", "none", -1), ("ece", "posthoc", -1)]
)
def test_estimates_are_mean_differences_of_the_metrics(study: MadeUp, metric: str, scaling: str, sign: int) -> None:
    frame = study.evaluation.contrasts.set_index(["dataset", "ood", "metric", "scaling", "candidate", "rival"])
    line = frame.loc["ptbxl", 60, metric, scaling, "safeecgmatch@time", "calimatch"]
    own = [value(study, f"ptbxl/safeecgmatch/60/{seed}", "time", metric, scaling) for seed in (1, 2)]
    other = [value(study, f"ptbxl/calimatch/60/{seed}", "main", metric, scaling) for seed in (1, 2)]
    differences = sign * (np.array(own) - np.array(other))
    assert line["estimate"] == pytest.approx(differences.mean())
    assert line["se_seeds"] == pytest.approx(differences.std(ddof=1) / np.sqrt(2))
    assert line["seeds"] == 2 and line["records"] == 60 and -1 <= line["low"] <= line["high"] <= 1


def test_rows_and_pairs_of_a_whole_study(study: MadeUp) -> None:
    names = {cell.row for cell in study.cells}
    assert {
        "calimatch",
        "safeecgmatch",
        "safeecgmatch-no_cal",
        "safeecgmatch-lambda_1/3",
        "safeecgmatch-lambda_3",
    } <= names
    frame = study.evaluation.contrasts
    here = frame[(frame["dataset"] == "ptbxl") & (frame["ood"] == 60) & (frame["metric"] == "acc")]
    pairs = set(zip(here["candidate"], here["rival"], strict=True))
    assert ("safeecgmatch@fused", "safeecgmatch-lambda_1/3@fused") in pairs
    assert ("safeecgmatch@fused", "safeecgmatch@freq") in pairs and ("fixmatch", "supervised") in pairs
    scores = frame[frame["rival"].str.endswith("#msp")]
    assert set(scores["metric"]) == {"auroc"}
    assert {"calimatch", "openmatch", "safeecgmatch@time"} <= set(
        scores["candidate"]
    )  # those with a score of their own
    same = frame[(frame["candidate"] == "supervised") & (frame["rival"] == "supervised")]
    assert same.empty


def test_the_two_by_two_of_temperature_rule_and_frequency_branch() -> None:
    pairs = wanted_pairs(sorted([*ROWS, *OTHERS]))
    assert len(pairs) == len({frozenset(pair) for pair in pairs})  # none twice, not even turned
    for branch in ("fused", "time"):
        assert (f"safeecgmatch@{branch}", f"safeecgmatch-learned_t@{branch}") in pairs
    for row in ("safeecgmatch", "safeecgmatch-learned_t"):
        assert (f"{row}@fused", f"{row}@time") in pairs and (f"{row}@fused", f"{row}@freq") in pairs
    learned = {rival for candidate, rival in pairs if candidate == "safeecgmatch-learned_t@fused"}
    variants = {"safeecgmatch-learned_no_freq_cal@fused", "safeecgmatch-learned_two_time@fused"}
    assert {rival for rival in learned if "-" in rival and "#" not in rival} == variants | {
        "safeecgmatch-no_cal@fused"
    } | {f"safeecgmatch-learned_t@{b}" for b in ("time", "freq")}
    assert ("safeecgmatch@fused", "safeecgmatch-learned_two_time@fused") not in pairs
    assert not any("-" in rival for candidate, rival in pairs if "@" not in rival), "an arm is no baseline"
    assert ("fixmatch-seen_pool", "fixmatch") in pairs and ("safeecgmatch@time", "safeecgmatch-val150@time") in pairs


def test_a_seed_that_a_rival_lacks_is_left_out_and_other_runs_are_no_seeds() -> None:
    values = {"calimatch": {1: 0.80, 2: 0.81, 3: 0.85}, "safeecgmatch@fused": {1: 0.82, 2: 0.85}}
    values |= {"calimatch-val150": {1: 0.1, 2: 0.1, 3: 0.1}, "safeecgmatch-lambda_3@fused": {3: 0.99, 4: 0.99}}
    rows = {
        row: {("acc", "none"): {seed: Sample(value, np.full(4, value), 9) for seed, value in runs.items()}}
        for row, runs in values.items()
    }
    frame = contrast_frame({("ptbxl", 60): rows}).set_index(["candidate", "rival"])
    line = frame.loc[("safeecgmatch@fused", "calimatch")]
    assert line["seeds"] == 2 and line["estimate"] == pytest.approx(0.03)
    assert line["se_seeds"] == pytest.approx(np.std([0.02, 0.04], ddof=1) / np.sqrt(2))
    assert ("safeecgmatch@fused", "safeecgmatch-lambda_3@fused") not in frame.index  # no seed in common


def test_arms_stay_beside_their_method_and_placebos_take_each_branch_at_its_own_best_epoch(tmp_path: Path) -> None:
    params = make_params(grid={"datasets": ["ptbxl"]})
    wanted = [Cell("ptbxl", "calimatch", 60, seed) for seed in (1, 2)]
    wanted += [replace(cell, arm="val150", stage_name="train_val150", tag="val150") for cell in wanted]
    main = Cell("ptbxl", "safeecgmatch", 60, 1, "two_time", 1.0, stage_name="train_variant", tag="two_time")
    placebos = [replace(main, seed=seed) for seed in (1, 2)]
    best = {"time": 0, "freq": 2}
    expected: dict[str, list[float]] = {"time": [], "freq": []}
    for cell in (*wanted, *placebos):
        write_cell(cell, params, tmp_path, 60)
    for cell in placebos:
        file = tmp_path / "runs" / cell.path / "trajectory.npz"
        trajectory, labels = read_arrays(file), read_arrays(file.with_name("predictions.npz"))["open_test.label"]
        for branch, epoch in best.items():  # at any other epoch a branch knows nothing
            others = np.arange(len(trajectory["iteration"])) != epoch
            for split in ("validation", "open_test"):
                trajectory[f"{split}.log_probs.{branch}"][others] = log_softmax(np.zeros((1, 3)))
            right = trajectory[f"open_test.log_probs.{branch}"][epoch].argmax(axis=1) == labels
            expected[branch].append(float(right[labels < 3].mean()))
        np.savez(file, **trajectory)  # type: ignore[arg-type]
    stored = [load_cell(c, tmp_path / "runs", tmp_path / "tracking")[0] for c in (*wanted, *placebos)]
    found = [cell for cell in stored if cell]
    metrics = pd.DataFrame([row for cell in found for row in metric_rows(cell)])
    draws = pd.concat([draw_frame(cell, metric_rows(cell)) for cell in found])
    frame = contrast_frame(rows_by_setting(draws)).set_index(["candidate", "rival", "metric", "scaling"])
    line = frame.loc[(*placebo(""), "acc", "none")]
    assert line["estimate"] == pytest.approx(np.mean(expected["freq"]) - np.mean(expected["time"]))
    assert line["seeds"] == 2 and (*placebo(""), "ece", "posthoc") in frame.index
    arm = frame.loc[("calimatch-val150", "calimatch", "acc", "none")]
    accuracy = metrics[(metrics["metric"] == "acc") & (metrics["scaling"] == "none")].groupby("row")["value"].mean()
    assert arm["seeds"] == 2
    assert arm["estimate"] == pytest.approx(accuracy["calimatch-val150"] - accuracy["calimatch"])
    study = Study(params, metrics, pd.DataFrame(), frame.reset_index())
    assert f"two time branches (frequency), ACC {line['estimate']:+.3f}" in notes(study)[-1]


def test_the_demo_has_audits_but_no_verdict_and_prints_them(study: MadeUp, tmp_path: Path) -> None:
    write_evaluation(study.evaluation, tmp_path)
    judged = judge(read_study(study.params, tmp_path))
    assert {judgement.id for judgement in judged if judgement.verdict != "not tested"} == {"C3"}
    details = claim_text(judged[4], ["a note"], 80)
    assert "generated data, no verdict" in details and "PTB-XL 30 % ACC: +0.007, p = 0.12" in details


def test_real_runs_of_two_methods_get_verdicts_with_size_and_power(tmp_path: Path) -> None:
    """A study that has just begun: three seeds of SafeECGMatch and CaliMatch at 60 %, everything else missing."""
    real = {"source": "path", "path": "mirror", "labels_per_class": 50, "pool_size": 14850}
    seeds, folder = [1, 2, 3], tmp_path / "out"
    params = make_params(profile="cpu", grid={"datasets": ["ptbxl"], "seeds": seeds}, data={"ptbxl": real})
    for cell in cells(params):
        if cell.ood == 60 and cell.method in ("calimatch", "safeecgmatch"):
            write_cell(cell, params, tmp_path, 60)
    write_evaluation(evaluate(params, tmp_path / "runs", tmp_path / "tracking"), folder)
    runs = pd.read_csv(folder / "runs.csv")
    assert set(runs["state"]) == {"done", "missing"}
    judged = {judgement.id: judgement for judgement in judge(read_study(params, folder))}
    assert judged["C1"].verdict == "not tested" and judged["C12"].verdict == "not tested"
    assert judged["C5"].verdict != "not tested" and "3 seeds" in judged["C5"].evidence
    assert "100 Hz" in judged["C5"].size and "width 8" in judged["C5"].size
    powers = [part.power for verdict in judged["C5"].readings for result in verdict.results for part in result.parts]
    assert powers and all(0 <= power <= 1 for power in powers)


def test_a_report_on_the_cells_that_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = make_params(grid={"datasets": ["ptbxl"], "methods": ["supervised"], "ood_levels": [60]})
    write_cell(cells(params)[0], params, tmp_path, 30)
    written: list[Path] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("safeecgmatch.config.load_params", lambda: params)
    monkeypatch.setattr("safeecgmatch.reporting.report.write_report", lambda _, folder: written.append(folder))
    text = CliRunner().invoke(app, ["report"], catch_exceptions=False).stdout
    assert f"reports on 1 of {len(cells(params))} cells" in text and written == [Path("reports/demo/paper")]
    frame = read_study(params, tmp_path / written[0])
    assert frame.contrasts.empty  # one cell has nothing to be compared with
    assert all(judgement.verdict == "not tested" for judgement in judge(frame) if judgement.id != "C3")
