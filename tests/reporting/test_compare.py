from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from safeecgmatch.profiles import compose_params
from safeecgmatch.reporting.barriers import barriers
from safeecgmatch.reporting.compare import (
    NOTE,
    ROUNDING,
    compare,
    comparison_frame,
    difference_to_print,
    place,
    proposed_ranks,
)
from safeecgmatch.reporting.compare_render import GENERATED, comparison_markdown, comparison_tex
from safeecgmatch.reporting.published import published_cells
from safeecgmatch.reporting.results import SeedMean
from safeecgmatch.reporting.statistics import Summary
from safeecgmatch.reporting.tables import Table, build_tables
from tests.conftest import ROOT
from tests.reporting.conftest import Study
from tests.reporting.synthetic import make_params, paper_params


@pytest.fixture(scope="module")
def tables(study: Study) -> list[Table]:
    return build_tables(study.params, study.evaluation.metrics, study.evaluation.runs)


def test_generated_data_are_not_compared(study: Study, tables: list[Table]) -> None:
    columns = compare(tables, study.params)
    frame = comparison_frame(columns)
    assert len(frame) == 12 * 16 + 3 * 4 + 3 * 4
    assert frame[["difference", "low", "high", "column_tau"]].isna().all(axis=None)
    assert frame["not_compared"].str.startswith("generated data, 100 Hz, width 8, 150 iterations").all()
    assert all(rank.ours is None for rank in proposed_ranks(columns))
    assert GENERATED in comparison_markdown(columns, "source", "remark")


def test_barriers_name_everything_that_is_not_the_papers() -> None:
    assert barriers(paper_params(), "ptbxl") == barriers(paper_params(), "cinc21") == []
    train = {**paper_params().train.model_dump(), "iterations": 2000, "evaluate_every": 200, "learning_rate": 0.01}
    small = paper_params(model={"width": 16}, train=train)
    assert barriers(small, "ptbxl") == ["width 16", "2,000 iterations", "10 evaluations", "learning rate 0.01"]
    assert barriers(paper_params(split={"strategy": "patient"}), "ptbxl") == ["patient split"]
    changed = {"safeecgmatch": {"confidence_threshold": 0.8, "switches": {"start": 20000}}}
    expected = ["confidence threshold of SafeECGMatch", "start of SafeECGMatch"]
    assert barriers(paper_params(methods=changed), "ptbxl") == expected
    assert barriers(make_params(), "cinc21")[0] == "generated data"


def test_the_profile_paper_meets_no_barrier() -> None:
    params = compose_params("paper", ROOT / "profiles")
    assert [barriers(params, dataset) for dataset in ("ptbxl", "cinc21")] == [[], []]


def test_real_data_of_another_size_get_an_order_but_no_levels(tables: list[Table]) -> None:
    columns = compare(tables, paper_params(model={"width": 16}))
    frame = comparison_frame(columns)
    assert frame["difference"].isna().all() and frame["column_tau"].notna().any()
    assert (frame["not_compared"] == "width 16").all()
    assert all(rank.ours is not None for rank in proposed_ranks(columns))
    assert "Levels are not compared: width 16." in comparison_markdown(columns, "source", "remark")


def test_the_papers_size_gets_differences_with_intervals_and_no_verdict(tables: list[Table]) -> None:
    columns = compare(tables, paper_params())
    frame = comparison_frame(columns)
    assert (frame["low"] < frame["difference"]).all() and (frame["difference"] < frame["high"]).all()
    assert frame["difference"].to_numpy() == pytest.approx((frame["ours_mean"] - frame["paper_mean"]).to_numpy())
    text = comparison_markdown(columns, "source", "remark") + comparison_tex(columns, "source", "remark")
    assert NOTE in text and "consistent" not in text and "undecided" not in text


def test_the_interval_is_welchs_with_the_rounding_of_the_print() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(1000):
        ours, theirs = rng.normal(0.82, 0.02, 3), rng.normal(0.80, 0.02, 3)
        printed = Summary(round(theirs.mean(), 3), round(theirs.std(ddof=1), 3), 3)
        _, low, high = difference_to_print(Summary(ours.mean(), ours.std(ddof=1), 3), printed)
        covered += low <= 0.02 <= high
    assert 0.94 <= covered / 1000 <= 0.99
    difference, low, high = difference_to_print(Summary(0.8, 0.0, 3), Summary(0.8, 0.0, 3))
    assert difference == 0 and -low == pytest.approx(high) and high >= 2 * ROUNDING
    assert np.isnan(difference_to_print(Summary(0.8, np.nan, 1), Summary(0.8, 0.01, 3))[1:]).all()


def copy_of_the_paper(tables: list[Table]) -> list[Table]:
    """Our tables with the paper's own numbers."""
    printed = {(c.table, c.dataset, c.row, c.ood, c.metric): c for c in published_cells()}
    names = {"table2_ablation": "ablation", "table3_benchmark": "benchmark", "table4_sensitivity": "sensitivity"}
    copies = []
    for table in (table for table in tables if table.name in names):
        values = []
        for row, line in zip(table.rows, table.values, strict=True):
            keys = [(names[table.name], c.dataset, row.key, row.runs.ood, c.metric) for c in table.columns]
            found = [
                SeedMean(printed[key].summary, 3) if key in printed else own
                for key, own in zip(keys, line, strict=True)
            ]
            values.append(found)
        copies.append(Table(**{**vars(table), "values": values}))
    return copies


def test_the_papers_own_numbers_have_its_order_and_places(tables: list[Table]) -> None:
    columns = compare(copy_of_the_paper(tables), paper_params())
    frame = comparison_frame(columns)
    assert frame["difference"].to_numpy() == pytest.approx(0) and frame["column_tau"].to_numpy() == pytest.approx(1.0)
    ranks = proposed_ranks(columns)
    assert [rank.ours for rank in ranks] == [rank.paper for rank in ranks] and {rank.paper for rank in ranks} == {1, 2}


def test_place_shares_ties_up_to_rounding() -> None:
    assert place({"a": 0.9, "safeecgmatch": 0.1 + 0.2, "b": 0.3}, "acc") == 2
    assert place({"a": 0.9, "safeecgmatch": 0.3, "b": 0.1 + 0.2}, "acc") == 2
    assert place({"a": 0.9, "safeecgmatch": 0.8, "b": 0.8}, "ece") == 1
    assert place({"a": 0.9}, "acc") is None


def test_missing_and_single_seeds_have_no_interval(study: Study) -> None:
    metrics, runs = study.evaluation.metrics, study.evaluation.runs
    metrics = metrics[(metrics["method"] != "fixmatch") & (metrics["seed"] == 1)]
    params = paper_params(grid={"seeds": [1]})
    frame = comparison_frame(compare(build_tables(params, metrics, runs), params)).set_index("row")
    assert frame.loc["fixmatch", "difference"].isna().all()
    assert frame.loc["iomatch", "difference"].notna().all() and frame.loc["iomatch", "low"].isna().all()


def test_printed_comparison_equals_the_frame(tables: list[Table], tmp_path: Path) -> None:
    columns = compare(tables, paper_params())
    frame = comparison_frame(columns)
    text = comparison_markdown(columns, "source", "remark")
    for difference in frame["difference"].round(3):
        assert f"{difference:+.3f}".replace("-0.000", "+0.000") in text.replace("-0.000", "+0.000")
