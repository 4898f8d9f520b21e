from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from safeecgmatch.cells import cells, weight_label
from safeecgmatch.config import Params, load_params
from safeecgmatch.reporting.catalogue import build_tables
from safeecgmatch.reporting.evaluate import evaluate
from safeecgmatch.reporting.printing import number, rounded, tex, to_markdown, to_tex
from safeecgmatch.reporting.provenance import variant_note
from safeecgmatch.reporting.study import Study
from safeecgmatch.reporting.tables import Column, Table
from tests.conftest import ROOT
from tests.reporting.conftest import MadeUp
from tests.reporting.synthetic import BASELINES, make_params, write_cell, write_study

NO_EXTRAS: dict[str, Any] = {"ablation": {"datasets": []}, "sensitivity": {"datasets": []}}
PAPER_TABLES = ["table1_summary", "table2_ablation", "table3_benchmark", "table4_sensitivity"]
TABLES = [
    *PAPER_TABLES, "table5_further_metrics", "table6_open_set", "table6b_refusal", "table7_posthoc", "table8_branches",
    "table9_training", "table9b_temperatures", "table10_readings", "table11_filter", "table12_validation_labels",
    "table13_checkpoints",
]  # fmt: skip
CELLS = {  # the folder, where a row is not named by it
    "safeecgmatch-lambda_1/3": "safeecgmatch-lambda_0.3333333333333333",
    "safeecgmatch-lambda_3": "safeecgmatch-lambda_3.0",
}
READINGS = [f"safeecgmatch{rule}@{branch}" for rule in ("", "-learned_t") for branch in ("fused", "time")]


def tables_from(result: Study, **changed: Any) -> dict[str, Table]:
    return {table.name: table for table in build_tables(replace(result, **changed))}


def tables_of(params: Params, root: Path) -> dict[str, Table]:
    return tables_from(evaluate(params, root / "runs", root / "tracking"))


@pytest.fixture(scope="module")
def tables(study: MadeUp) -> dict[str, Table]:
    return tables_from(study.evaluation)


def test_there_are_these_tables(tables: dict[str, Table]) -> None:
    assert list(tables) == TABLES


def assert_every_number_is_printed(table: Table) -> None:
    """In LaTeX and Markdown, each where its row and column are; `number` is tested by itself."""
    lines = [line for _, levels in table.blocks() for line in levels.values()]
    merged = 1 if lines[0][0].merged else 0  # Supervised comes first, and is there once
    body = to_tex(table).partition(r"\midrule")[2].partition(r"\bottomrule")[0]
    latex = [line.lstrip().removesuffix(r" \\").split(" & ") for line in body.splitlines() if " & " in line]
    for index, (line, texts) in enumerate(zip(lines, latex, strict=True)):
        shown = [number(cell, "tex", table.spread) for cell in line]
        if line[0].merged:
            shown = ["" if index else rf"\multirow{{2}}{{*}}{{{text}}}" for text in shown]
        assert texts[-len(line) :] == shown
    printed = [line for line in to_markdown(table).splitlines()[2:] if not line.startswith("| *")]  # sections
    texts = [[part.strip() for part in line.strip("|").split(" | ")][-len(table.columns) :] for line in printed]
    assert texts == [[number(cell, "md", table.spread) for cell in line] for line in lines[merged:]]


def test_every_number_of_the_csv_is_printed(tables: dict[str, Table], tmp_path: Path) -> None:
    for table in tables.values():
        assert_every_number_is_printed(table)
        table.frame().to_csv(tmp_path / "table.csv", index=False)
        frame = pd.read_csv(tmp_path / "table.csv")
        assert frame["mean"].tolist() == pytest.approx(table.cells["mean"].tolist(), abs=1e-15, nan_ok=True)
        whole = ("table1_summary", "table3_benchmark", "table4_sensitivity", "table13_checkpoints")
        assert frame["mean"].notna().all() or table.name not in whole  # others lack cells that nobody runs


def test_rounding_is_half_even_on_the_printed_digits() -> None:
    assert [rounded(value) for value in (0.8345, 0.8355, 0.8125, 0.83450001, 1e-9)] == [
        "0.834", "0.836", "0.812", "0.835", "0.000",
    ]  # fmt: skip


def test_layout_of_the_paper(tables: dict[str, Table]) -> None:
    latex = {name: to_tex(tables[name]) for name in PAPER_TABLES}
    for text in latex.values():
        assert text.count(r"\toprule") == text.count(r"\bottomrule") == 1
        assert r"\begin{table*}[t]" in text and "Generated (PTB-XL)" in text and r"\cite{wagner" not in text
    assert r"\cmidrule(lr){3-6} \cmidrule(lr){7-10}" in latex["table3_benchmark"]
    assert r"\begin{tabular}{@{}llcccccccc@{}}" in latex["table3_benchmark"]
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}" in latex["table2_ablation"]
    assert latex["table3_benchmark"].count(r"\addlinespace") == 14 and r"\emph" not in latex["table3_benchmark"]
    assert [row.key for row in tables["table1_summary"].rows] == [
        "supervised", "openmatch", "complematch", "ecgmatch", "calimatch", *READINGS,
    ]  # fmt: skip
    assert r"$\lambda_{\mathrm{sum}}=\frac{1}{3}$" in latex["table4_sensitivity"]
    assert "which checkpoint is chosen" in latex["table4_sensitivity"]


def test_supervised_is_merged_where_its_runs_are_equal(tables: dict[str, Table]) -> None:
    frame = tables["table3_benchmark"].frame()
    assert frame.loc[frame["row"] == "supervised", "merged"].all()
    assert not frame.loc[frame["row"] != "supervised", "merged"].any()
    assert to_tex(tables["table3_benchmark"]).count(r"\multirow{2}{*}{0.") == 8


def test_supervised_is_not_merged_where_its_runs_differ(study: MadeUp) -> None:
    metrics = study.evaluation.metrics.copy()
    here = (metrics["cell"] == "cinc21/supervised/60/1") & (metrics["scaling"] == "none")
    metrics.loc[here & metrics["metric"].isin(["nll", "acc"]), "value"] += 1e-6
    table = tables_from(study.evaluation, metrics=metrics)["table3_benchmark"]
    frame = table.frame().set_index("row").loc["supervised"]
    assert not frame["merged"].any() and r"\multirow{2}{*}{0." not in to_tex(table)  # the whole row or nothing


def test_marks_are_made_within_an_ood_setting(tables: dict[str, Table]) -> None:
    frame = tables["table3_benchmark"].frame()
    assert set(READINGS) < set(frame["row"])  # ranked with all others
    for (_, _, metric), column in frame.groupby(["dataset", "ood", "metric"]):
        means = column["mean"].round(12)
        best, second = sorted(means.unique(), reverse=metric == "acc")[:2]
        assert means[column["mark"] == "best"].unique().tolist() == [best]
        assert means[column["mark"] == "second"].unique().tolist() == [second]
        assert (column["mark"] != "").sum() == means.isin([best, second]).sum()


def test_missing_cells_are_dashes_and_few_seeds_are_marked(tmp_path: Path) -> None:
    params = make_params(grid={"methods": ["supervised", "fixmatch"]})
    gone = {"ptbxl/fixmatch/30/1", "ptbxl/fixmatch/30/2", "cinc21/fixmatch/60/2"}
    for cell in cells(params):
        if cell.path not in gone:
            write_cell(cell, params, tmp_path, 30)
    table = tables_of(params, tmp_path)["table3_benchmark"]
    frame = table.frame()
    missing = frame[(frame["row"] == "fixmatch") & (frame["ood"] == 30) & (frame["dataset"] == "ptbxl")]
    assert missing["mean"].isna().all() and (missing["seeds"] == 0).all()
    alone = frame[(frame["row"] == "fixmatch") & (frame["ood"] == 60) & (frame["dataset"] == "cinc21")]
    assert (alone["seeds"] == 1).all() and alone["std"].isna().all()
    assert_every_number_is_printed(table)
    assert to_tex(table).count("--") == 4 and to_tex(table).count(r"$^{\dagger}$") == 4
    assert any(note.startswith("†") for note in table.notes)
    assert "30 % | – | – | – | – |" in to_markdown(table)


def test_another_weight_leaves_dashes_in_the_rows_that_mean_weight_one(tmp_path: Path) -> None:
    params = make_params(lambda_sum=3.0, grid={"methods": ["supervised"]})
    write_study(params, tmp_path, records=30)
    tables = tables_of(params, tmp_path)
    ablation = tables["table2_ablation"].frame().set_index("row")["mean"]
    assert ablation["safeecgmatch-lambda_1"].isna().all() and ablation["safeecgmatch-no_cal"].notna().all()
    assert ablation["safeecgmatch-no_freq_cal"].notna().all()
    sensitivity = tables["table4_sensitivity"].frame().set_index("label")
    assert sensitivity.loc["λ_sum = 1", "mean"].isna().all()
    assert sensitivity.loc[["λ_sum = 1/3", "λ_sum = 3"], "mean"].notna().all()
    assert (sensitivity.loc["λ_sum = 3", "seeds"] == 2).all()  # main and sensitivity runs share the weight
    benchmark = tables["table3_benchmark"]
    assert benchmark.frame().set_index("row").loc["safeecgmatch@time", "mean"].notna().all()
    assert "lambda_sum = 3" in benchmark.source
    assert r"$\lambda_{\mathrm{sum}}$ = 3" in to_tex(benchmark)


def test_a_third_may_be_written_short_but_one_must_be_one() -> None:
    assert [weight_label(weight) for weight in (0.333, 1 / 3, 1.001, 3.0)] == ["1/3", "1/3", "1.001", "3"]


def test_a_new_weight_method_and_level_get_rows_of_their_own(tmp_path: Path) -> None:
    params = make_params(
        grid={"datasets": ["ptbxl"], "methods": ["mymethod"], "ood_levels": [15, 30, 60], "seeds": [1]},
        ablation={"datasets": ["ptbxl"]},
        sensitivity={"lambda_sums": [0.0, 3.0]},
    )
    write_study(params, tmp_path, records=30)
    tables = tables_of(params, tmp_path)
    assert [row.published for row in tables["table4_sensitivity"].rows] == ["0", "1/3", "1", "3"]
    benchmark = tables["table3_benchmark"]
    assert (benchmark.rows[-1].key, benchmark.rows[-1].levels) == ("mymethod", [15, 30, 60])
    frame = benchmark.frame()
    assert (frame.loc[frame["row"] == "mymethod", "mark"] == "").all()
    assert "Rows that are not in the paper are not ranked." in benchmark.notes
    assert {column.dataset for column in benchmark.columns} == {"ptbxl"}
    assert r"$\pm$" not in to_tex(benchmark).split(r"\midrule")[1].split(r"\bottomrule")[0]  # one seed has no std
    assert_every_number_is_printed(benchmark)


def test_caption_says_where_the_numbers_come_from(tables: dict[str, Table]) -> None:
    for table in tables.values():
        printed = to_tex(table)
        for part in ("Profile demo", "protocol paper", "seeds 1, 2", "generated ECGs in the layout of PTB-XL"):
            assert part in printed
        assert "0123456789" not in printed  # the same numbers at another commit are the same table
        assert any("ddof = 1" in note for note in table.notes) == (
            table.name not in ("table10_readings", "table13_checkpoints")
        )


def test_release_notes_stand_under_the_release_tables_only(study: MadeUp, tables: dict[str, Table]) -> None:
    release = study.params.model_copy(update={"protocol": "release"})
    runs = study.evaluation.runs.assign(no_competitor=study.evaluation.runs["cell"] == "ptbxl/safestudent/30/1")
    benchmark = tables_from(study.evaluation, params=release, runs=runs)["table3_benchmark"]
    notes = " ".join(benchmark.notes)
    assert "ptbxl/safestudent/30/1" in notes and "never leaves its warm-up" in notes
    assert "TS-TFC under another name" in notes
    assert "warm-up" not in " ".join(tables["table3_benchmark"].notes)


def test_uncounted_seed_is_missing_in_the_tables(study: MadeUp) -> None:
    metrics = study.evaluation.metrics.copy()
    metrics.loc[metrics["cell"] == "ptbxl/safestudent/30/1", "counted"] = False
    frame = tables_from(study.evaluation, metrics=metrics)["table3_benchmark"].frame()
    rows = frame[(frame["row"] == "safestudent") & (frame["dataset"] == "ptbxl")].set_index("ood")["seeds"]
    assert (rows[30] == 1).all() and (rows[60] == 2).all()


def test_intervals_hold_the_mean(tables: dict[str, Table]) -> None:
    frame = tables["table3_benchmark"].frame()
    assert frame["mean"].between(frame["interval_low"], frame["interval_high"]).all()
    assert frame["interval_low"].min() >= 0 and frame["interval_high"].max() <= 1


def test_latex_escapes() -> None:
    assert tex("60 % & a_b λ_sum = 0.5 ± †") == r"60 \% \& a\_b $\lambda_{\mathrm{sum}}=0.5$ $\pm$ $\dagger$"


def cell(mean: float = math.nan, std: float = math.nan, **changes: Any) -> Any:
    """A line of `Table.cells`."""
    values = {"mark": "", "is_gain": False, "seeds": 2, "seeds_asked": 2, "interval_low": -0.05, "interval_high": 0.01}
    return SimpleNamespace(**{"mean": mean, "std": std, **values, **changes})


def test_a_number_has_its_spread_mark_and_dagger() -> None:
    assert number(cell(0.5, 0.1), "md") == "0.500±0.100" and number(cell(0.5), "md") == "0.500"
    assert number(cell(0.5, 0.1, mark="best"), "tex") == r"\textbf{0.500$\pm$0.100}"
    assert number(cell(0.5, 0.1), "md", spread=False) == "0.500"
    assert [number(cell(0.5, 0.1, seeds_asked=asked), "md")[-1] for asked in (2, 3)] == ["0", "†"]
    assert number(cell(seeds=0, seeds_asked=3), "md") == "–"


def test_a_gain_has_its_sign_and_interval() -> None:
    assert number(cell(-0.02, is_gain=True), "md") == "-0.020 [-0.050, +0.010]"
    assert number(cell(-0.02, is_gain=True), "tex") == "$-$0.020 [$-$0.050, +0.010]"
    assert number(cell(is_gain=True, seeds=0), "md") == "–"


def test_ablation_is_found_at_its_own_weight(tmp_path: Path) -> None:
    params = make_params(lambda_sum=3.0, ablation={"lambda_sum": 3.0}, grid={"methods": ["supervised"]})
    write_study(params, tmp_path, records=30)
    table = tables_of(params, tmp_path)["table2_ablation"]
    assert table.frame()["mean"].notna().all() and "lambda_sum = 3" in table.caption


def test_variants_beyond_the_paper_stand_below_a_rule_and_are_not_ranked(tmp_path: Path) -> None:
    extra = ["two_time", "coupled", "log_spectrum"]
    params = make_params(
        grid={"datasets": ["ptbxl"], "methods": ["supervised"]},
        ablation={"datasets": ["ptbxl"], "variants": [extra[0], "no_freq_cal", "no_cal", *extra[1:]]},
    )
    write_study(params, tmp_path, records=30)
    tables = tables_of(params, tmp_path)
    table = tables["table2_ablation"]
    names = ["no_freq_cal", "no_cal", *extra]
    assert [row.key for row in table.rows] == ["safeecgmatch", *(f"safeecgmatch-{name}" for name in names)]
    above, below = to_tex(table).split(r"\emph{not in the paper}")
    assert "w/o both Calib." in above and "two time branches" in below and r"\textbf{0." not in below
    assert to_markdown(table).count("| *not in the paper* |") == 1
    assert {"safeecgmatch-two_time", "safeecgmatch-coupled"} <= {row.key for row in tables["table9_training"].rows}


def test_the_ablation_is_ranked_under_each_temperature_rule(tables: dict[str, Table]) -> None:
    frame = tables["table2_ablation"].frame()
    here = frame[(frame["dataset"] == "ptbxl") & (frame["metric"] == "acc")]
    parts = {section: part.set_index("row") for section, part in here.groupby("section")}
    rows = {"": "safeecgmatch", "temperatures learned": "safeecgmatch-learned_t"}
    for section, full in rows.items():
        part = parts[section]
        assert part.index[0] == full and part.index[-1] == "safeecgmatch-no_cal" and len(part) == 3
        assert part["mark"].tolist().count("best") == 1 and part["mean"].idxmax() == part["mark"].eq("best").idxmax()
    assert len({part.loc["safeecgmatch-no_cal", "mean"] for part in map(parts.get, rows)}) == 1
    others = [f"safeecgmatch-{name}" for name in ("two_time", "learned_two_time", "coupled")]
    assert parts["not in the paper"].index.tolist() == others and not parts["not in the paper"]["mark"].any()


def test_diverged_seed_is_missing_with_its_reason(tmp_path: Path) -> None:
    params = make_params(grid={"datasets": ["ptbxl"], "methods": ["adello"], "ood_levels": [60]}, **NO_EXTRAS)
    for cell in cells(params):
        reason = "The loss stopped being finite before iteration 50."
        write_cell(cell, params, tmp_path, 30, diverged=reason if cell.method == "adello" else None)
    result = evaluate(params, tmp_path / "runs", tmp_path / "tracking")
    assert result.runs.set_index("cell").loc["ptbxl/adello/60/1", ["state", "diverged"]].tolist() == [
        "diverged",
        reason,
    ]
    table = tables_from(result)["table3_benchmark"]
    assert table.frame().set_index("row").loc["adello", "mean"].isna().all()
    assert f"ptbxl/adello/60/2 has no result: {reason}" in table.notes


def test_training_table_says_what_was_accepted(tables: dict[str, Table], study: MadeUp) -> None:
    frame = tables["table9_training"].frame().set_index(["row", "ood", "dataset", "metric"])["mean"]
    history = pd.read_csv(study.root / "runs/ptbxl/fixmatch/60/1/history.csv")
    share = (history["mask_rate"] * history["pseudo_ood_share"]).sum() / history["mask_rate"].sum()
    assert frame["fixmatch", 60, "ptbxl", "accepted_unseen"] == pytest.approx(share)
    assert frame["fixmatch", 60, "ptbxl", "accepted"] == pytest.approx(history["mask_rate"].mean())
    assert math.isnan(frame["supervised", 60, "ptbxl", "accepted"])
    last = tables["table9b_temperatures"].frame().set_index(["row", "ood", "dataset", "metric"])["mean"]
    assert last["calimatch", 60, "ptbxl", "t_class"] == last["safeecgmatch", 60, "ptbxl", "t_class_second"]
    assert frame["fixmatch-seen_pool", 60, "cinc21", "accepted"] > 0
    assert frame["ecgmatch", 30, "cinc21", "teacher_accuracy"] == pytest.approx(0.5 + 0.2 * (1 - math.exp(-3)))


def test_warnings_are_grouped_under_the_training_table(study: MadeUp) -> None:
    runs = study.evaluation.runs.copy()
    runs.loc[:7, "warnings"] = "nothing was accepted; T sits at 5"
    table = tables_from(study.evaluation, runs=runs)["table9_training"]
    assert table.notes[-1].startswith("Warning in 8 cells: T sits at 5 (ptbxl/supervised/30/1, ")
    assert "and 2 more" in table.notes[-1]


def test_notes_speak_of_methods_and_data_of_their_table_alone(tables: dict[str, Table], study: MadeUp) -> None:
    """TS-TFC and SafeStudent are not in Table 1, and no row of Table 4 but SafeECGMatch's."""
    notes = {name: " ".join(table.notes) for name, table in tables.items()}
    assert "CompleMatch reports" in notes["table1_summary"] and "TS-TFC" not in notes["table1_summary"]
    for name in ("table2_ablation", "table4_sensitivity", "table12_validation_labels"):
        assert "TS-TFC" not in notes[name] and "CompleMatch" not in notes[name]
    assert "CinC21" in notes["table2_ablation"] and "CinC21" not in notes["table4_sensitivity"]
    release = study.params.model_copy(update={"protocol": "release"})
    runs = study.evaluation.runs.copy()
    gone = runs["cell"].isin(["cinc21/safestudent/60/1", "ptbxl/safeecgmatch-lambda_3.0/60/1"])
    runs.loc[gone, ["state", "diverged"]] = "diverged", "It stopped."
    published = tables_from(study.evaluation, params=release, runs=runs.assign(no_competitor=False))
    notes = {name: " ".join(table.notes) for name, table in published.items()}
    assert "SafeStudent" in notes["table3_benchmark"] and "SafeStudent" not in notes["table1_summary"]
    assert "cinc21/safestudent/60/1 has no result" in notes["table3_benchmark"]
    assert "safestudent" not in notes["table1_summary"] and "cinc21" not in notes["table4_sensitivity"]
    assert "lambda_3.0/60/1 has no result: It stopped." in notes["table4_sensitivity"]
    assert "lambda_3.0" not in notes["table3_benchmark"]


def test_supervised_is_said_to_be_printed_once_only_where_it_is(tables: dict[str, Table]) -> None:
    for table in tables.values():
        assert any("printed once" in note for note in table.notes) == table.cells["merged"].any()
    assert "table3_benchmark" in {name for name, table in tables.items() if table.cells["merged"].any()}


def test_two_branch_baselines_say_which_branch_each_seed_reports(tables: dict[str, Table]) -> None:
    notes = " ".join(tables["table3_benchmark"].notes)
    assert "TS-TFC reports the branch that is better on validation" in notes
    assert "Generated (PTB-XL) 30 %: mean of both (seeds 1, 2)" in notes


def test_open_set_table_names_the_scores(tables: dict[str, Table]) -> None:
    notes = " ".join(tables["table6_open_set"].notes)
    assert "OpenMatch: one-vs-all outlier probability of the predicted class" in notes
    assert "1 - max probability: Supervised, FixMatch" in notes


def test_rows_equal_by_construction_say_so_where_the_time_branch_is_reported(study: MadeUp) -> None:
    metrics = study.evaluation.metrics.copy()
    proposed = metrics["method"] == "safeecgmatch"
    metrics.loc[proposed, "reported"] = metrics.loc[proposed, "branch"] == "time"
    for branch, result in (("time", replace(study.evaluation, metrics=metrics)), ("fused", study.evaluation)):
        notes = {name: " ".join(table.notes) for name, table in tables_from(result).items()}
        said = {name for name, text in notes.items() if "equal by construction" in text}
        assert said == ({"table2_ablation", "table4_sensitivity"} if branch == "time" else set())


def test_comparing_with_the_paper_names_the_rows_that_run_another_variant() -> None:
    note = variant_note(load_params(ROOT / "params.yaml"), ["supervised", *BASELINES[1:], "safeecgmatch"])
    assert int(note.split()[0]) >= 9 and "Supervised differ in batch order" in note


def test_ece_is_printed_with_its_floor(tables: dict[str, Table], study: MadeUp) -> None:
    metrics = study.evaluation.metrics
    floors = metrics.loc[(metrics["metric"] == "ece_floor") & (metrics["dataset"] == "ptbxl"), "value"]
    assert f"about {floors.median():.3f} on Generated (PTB-XL)" in " ".join(tables["table3_benchmark"].notes)
    assert "perfectly calibrated" not in " ".join(tables["table6_open_set"].notes)


@pytest.mark.parametrize("name", TABLES)
def test_every_value_of_every_table_is_that_of_its_row_branch_and_reading(
    tables: dict[str, Table], study: MadeUp, name: str
) -> None:
    """By another way than the tables go: means of metrics.csv, differences of means of two of its rows."""
    metrics = study.evaluation.metrics
    found = 0
    lines = [(row, ood, values) for row, levels in tables[name].blocks() for ood, values in levels.items()]
    for row, ood, values in lines:
        for column, value in zip(tables[name].columns, values, strict=True):
            if "#own" in row.key:
                continue  # tests of the contrasts look at these
            means = [mean_of(metrics, key, ood, column) for key in row.key.split(" - ")]
            if any(math.isnan(mean) for mean in means):
                assert math.isnan(value.mean) and value.seeds == 0
                continue
            sign = -1 if column.metric == "ece" else 1
            expected = sign * (means[0] - means[1]) if row.is_gain else means[0]
            assert value.mean == pytest.approx(expected, abs=1e-9), (row, column)
            found += 1
    assert found > 0.35 * len(lines) * len(tables[name].columns)


def mean_of(metrics: pd.DataFrame, key: str, ood: int, column: Column) -> float:
    row, _, branch = key.partition("@")
    chosen = metrics[
        (metrics["cell"].str.startswith(f"{column.dataset}/{CELLS.get(row, row)}/{ood}/"))
        & (metrics["metric"] == column.metric)
        & (metrics["scaling"] == column.scaling)
        & (metrics["branch"].eq(branch) if branch else metrics["reported"])
    ]
    assert len(chosen) in (0, 2)
    return float(chosen["value"].mean())
