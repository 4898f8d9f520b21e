from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from safeecgmatch.config import Params
from safeecgmatch.reporting.compare import (
    MARGIN,
    RULE,
    barriers,
    compare,
    comparison_frame,
    gains_over,
    place,
    proposed_ranks,
    verdict,
)
from safeecgmatch.reporting.compare_render import comparison_markdown, comparison_tex, verdict_counts
from safeecgmatch.reporting.published import published_cells
from safeecgmatch.reporting.results import SeedMean
from safeecgmatch.reporting.statistics import Summary, holm, welch_p
from safeecgmatch.reporting.tables import Table, build_tables
from tests.reporting.conftest import Study
from tests.reporting.synthetic import make_params, paper_params


@pytest.fixture(scope="module")
def tables(study: Study) -> list[Table]:
    return build_tables(study.params, study.evaluation.metrics, study.evaluation.runs)


def test_generated_data_are_not_compared(study: Study, tables: list[Table]) -> None:
    frame = comparison_frame(compare(tables, study.params))
    assert len(frame) == 12 * 16 + 3 * 4 + 3 * 4
    assert frame[["difference", "p", "p_holm", "column_tau"]].isna().all(axis=None)
    assert frame["verdict"].str.startswith("not compared: generated data").all()
    text = comparison_markdown(compare(tables, study.params), "source")
    assert "not compared: generated data, 100 Hz, width 8, 150 iterations" in text


def test_barriers_name_each_size_that_is_not_the_papers() -> None:
    assert barriers(paper_params(), "ptbxl") == barriers(paper_params(), "cinc21") == []
    small = paper_params(model={"width": 16}, train={"iterations": 2000, "evaluate_every": 200, "batch": 64})
    assert barriers(small, "ptbxl") == ["width 16", "2,000 iterations"]
    assert barriers(paper_params(split={"strategy": "patient"}), "ptbxl") == ["patient split"]
    assert barriers(make_params(), "cinc21")[0] == "generated data"


def test_real_data_of_another_size_get_differences_but_no_verdict(tables: list[Table]) -> None:
    params = paper_params(model={"width": 16})
    frame = comparison_frame(compare(tables, params))
    assert frame["difference"].notna().all() and frame["column_tau"].notna().any()
    assert frame["p"].isna().all() and (frame["verdict"] == "not compared: width 16").all()


def test_paper_sizes_are_tested_with_holm_within_a_column(tables: list[Table]) -> None:
    frame = comparison_frame(compare(tables, paper_params()))
    printed = {(c.table, c.dataset, c.row, c.ood, c.metric): c for c in published_cells()}
    for _, column in frame.groupby(["table", "dataset", "ood", "metric"]):
        expected = []
        for row in column.itertuples():
            paper = printed[row.table, row.dataset, row.row, row.ood, row.metric]
            expected.append(welch_p(paper.summary, Summary(row.ours_mean, row.ours_std, row.ours_seeds)))
            assert row.difference == pytest.approx(row.ours_mean - paper.mean)
        assert column["p"].tolist() == expected
        assert column["p_holm"].tolist() == holm(expected)
    assert set(frame["verdict"]) <= {"different", "consistent", "undecided"}


def test_verdict_rule() -> None:
    assert verdict(0.001, 0.04, "") == "different"
    assert verdict(MARGIN, 0.05, "") == "consistent"
    assert verdict(-MARGIN - 1e-9, 0.9, "") == "undecided"
    assert verdict(0.3, math.nan, "") == "not tested: one seed"
    assert verdict(math.nan, math.nan, "") == "not compared: missing here"
    assert verdict(0.001, 0.9, "width 8") == "not compared: width 8"
    assert "0.02" in RULE and "0.05" in RULE


def copy_of_the_paper(tables: list[Table], shift: float) -> list[Table]:
    """Our tables with the paper's own numbers, moved by `shift`."""
    printed = {(c.table, c.dataset, c.row, c.ood, c.metric): c for c in published_cells()}
    names = {"table2_ablation": "ablation", "table3_benchmark": "benchmark", "table4_sensitivity": "sensitivity"}
    copies = []
    for table in tables:
        if table.name in names:
            entries = []
            for row in table.rows:
                line = []
                for column in table.columns:
                    key = (names[table.name], column.dataset, row.key, row.runs.ood, column.metric)
                    paper = printed[key].summary
                    line.append(SeedMean(Summary(paper.mean + shift, paper.std, 3), 3))
                entries.append(line)
            copies.append(Table(table.name, "", table.rows, table.columns, entries, table.template))
    return copies


def test_the_papers_own_numbers_are_consistent_and_far_ones_are_not(tables: list[Table]) -> None:
    same = compare(copy_of_the_paper(tables, 0.0), paper_params())
    frame = comparison_frame(same)
    assert (frame["verdict"] == "consistent").all()
    assert frame["column_tau"].to_numpy() == pytest.approx(1.0)
    assert [rank.ours for rank in proposed_ranks(same)] == [rank.paper for rank in proposed_ranks(same)]
    assert {rank.paper for rank in proposed_ranks(same)} == {1, 2}
    far = comparison_frame(compare(copy_of_the_paper(tables, 0.3), paper_params()))
    benchmark = far[far["table"] == "benchmark"]
    assert (benchmark["verdict"] == "different").mean() > 0.9 and not (benchmark["verdict"] == "consistent").any()


def test_gain_over_calimatch_repeats_the_papers_differences(tables: list[Table]) -> None:
    gains = gains_over(compare(copy_of_the_paper(tables, 0.0), paper_params()))
    assert len(gains) == 16
    for gain in gains:
        assert gain.ours == pytest.approx(gain.paper) and gain.ours_p == pytest.approx(gain.paper_p)
    assert round(gains[0].paper, 3) == 0.007 and round(gains[0].paper_p, 2) == 0.12


def test_place_shares_ties() -> None:
    assert place({"a": 0.9, "safeecgmatch": 0.8, "b": 0.8}, "acc") == 2
    assert place({"a": 0.9, "safeecgmatch": 0.8, "b": 0.8}, "ece") == 1
    assert place({"a": 0.9}, "acc") is None


def test_missing_and_single_seeds_are_said(study: Study) -> None:
    params: Params = paper_params(grid={"seeds": [1]})
    metrics = study.evaluation.metrics
    metrics = metrics[metrics["method"] != "fixmatch"]
    frame = comparison_frame(compare(build_tables(params, metrics, study.evaluation.runs), params)).set_index("row")
    assert set(frame.loc["fixmatch", "verdict"]) == {"not compared: missing here"}
    assert set(frame.loc["iomatch", "verdict"]) == {"not tested: one seed"}


def test_printed_comparison_equals_the_frame(tables: list[Table], tmp_path: Path) -> None:
    columns = compare(tables, paper_params())
    frame = comparison_frame(columns)
    latex = comparison_tex(columns, "source")
    assert "p $<$ 0.05" in latex and r"$\neq$ different" in latex  # a bare < is printed as an inverted exclamation mark
    assert latex.count(r"\neq") == (frame["verdict"] == "different").sum() + 1  # one in the legend
    assert latex.count(r"\begin{tabular}") == 4 * 2 + 2 + 2
    counts = verdict_counts(columns).splitlines()[2:]
    benchmark = frame[frame["table"] == "benchmark"]
    total = sum(int(line.split("|")[2]) for line in counts)
    assert len(counts) == 16 and total == (benchmark["verdict"] == "consistent").sum()
    frame.to_csv(tmp_path / "compare.csv", index=False)
    assert len(pd.read_csv(tmp_path / "compare.csv")) == 216
