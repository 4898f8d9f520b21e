from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from safeecgmatch.profiles import compose_params
from safeecgmatch.reporting.barriers import barriers
from safeecgmatch.reporting.catalogue import build_tables
from safeecgmatch.reporting.compare import (
    PAPER_TABLES,
    ROUNDING,
    compare,
    comparison_frame,
    difference_to_print,
    place,
    place_of,
)
from safeecgmatch.reporting.compare_render import comparison_markdown, comparison_tex, rank_grid
from safeecgmatch.reporting.published import published_cells
from safeecgmatch.reporting.results import SeedMean
from safeecgmatch.reporting.statistics import Summary
from safeecgmatch.reporting.tables import Table
from tests.conftest import ROOT
from tests.reporting.conftest import Study
from tests.reporting.synthetic import make_params, paper_params


@pytest.fixture(scope="module")
def tables(study: Study) -> list[Table]:
    found = study.evaluation
    return build_tables(study.params, found.metrics, found.runs, found.contrasts)


def with_the_papers_numbers(tables: list[Table], shift: float, seeds: int = 3) -> list[Table]:
    """Our tables with the paper's own numbers, moved by `shift`; rows that the paper does not have are empty."""
    printed = {(c.table, c.dataset, c.row, c.ood, c.metric): c.summary for c in published_cells()}
    copies = []
    for table in tables:
        values = []
        for row in table.rows:
            keys = [
                (PAPER_TABLES.get(table.name), c.dataset, row.published, row.runs.ood, c.metric) for c in table.columns
            ]
            papers = [printed.get(key) for key in keys]  # type: ignore[call-overload]
            values.append([SeedMean(Summary(p.mean + shift, p.std, seeds) if p else None, 3) for p in papers])
        copies.append(replace(table, values=values))
    return copies


def test_generated_data_stand_nowhere_beside_the_paper(study: Study, tables: list[Table]) -> None:
    columns = compare(tables, study.params)
    frame = comparison_frame(columns)
    assert len(frame) == (11 + 4) * 16 + 3 * 4 + 3 * 4  # four readings of SafeECGMatch
    assert frame[["difference", "low", "high", "column_tau"]].isna().all(axis=None)
    assert frame["not_compared"].str.startswith("generated data").all()
    assert "generated data" in comparison_markdown(columns, "source", "remark") and "0.852" not in comparison_markdown(
        columns, "source", "remark"
    )
    assert r"\begin{table" not in comparison_tex(columns, "source", "remark")
    assert {place(column, cell)[1] for column in columns for cell in column.cells} == {None}


def test_barriers_name_everything_that_is_not_the_papers() -> None:
    assert barriers(paper_params(), "ptbxl") == barriers(paper_params(), "cinc21") == []
    train = {**paper_params().train.model_dump(), "iterations": 2000, "epoch": 200, "learning_rate": 0.01}
    small = paper_params(model={"width": 16}, train=train)
    assert barriers(small, "ptbxl") == [
        "width 16",
        "2,000 iterations",
        "epochs of 200 iterations",
        "learning rate 0.01",
    ]
    assert barriers(paper_params(split={"strategy": "patient"}), "ptbxl") == ["patient split"]
    changed = {
        "safeecgmatch": {
            "confidence_threshold": 0.8,
            "switches": {"paper": {"start": 20000}, "release": {"prediction": "freq"}},
        }
    }
    expected = ["confidence threshold of SafeECGMatch", "start of SafeECGMatch"]
    assert barriers(paper_params(methods=changed), "ptbxl") == expected
    assert barriers(make_params(), "cinc21")[0] == "generated data"


def test_the_profile_paper_meets_no_barrier() -> None:
    params = compose_params("paper", ROOT / "profiles")
    assert [barriers(params, dataset) for dataset in ("ptbxl", "cinc21")] == [[], []]


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


def test_real_data_of_another_size_get_places_but_no_differences(tables: list[Table]) -> None:
    columns = compare(with_the_papers_numbers(tables, 0.1), paper_params(model={"width": 16}))
    frame = comparison_frame(columns)
    assert frame["difference"].isna().all() and frame["column_tau"].to_numpy() == pytest.approx(1.0)
    text = comparison_markdown(columns, "source", "remark")
    assert "0.852±0.005 (1) | 0.952±0.005 (1) | –" in text and "Levels are not compared: width 16." in text


def test_the_papers_own_numbers_differ_by_nothing(tables: list[Table]) -> None:
    columns = compare(with_the_papers_numbers(tables, 0.0), paper_params())
    frame = comparison_frame(columns)
    assert frame["difference"].abs().max() < 1e-12
    assert ((frame["low"] < 0) & (frame["high"] > 0)).all()
    places = [(cell.paper.row, *place(column, cell)) for column in columns for cell in column.cells]
    assert all(paper == ours for _, paper, ours in places)
    assert {paper for row, paper, _ in places if row == "safeecgmatch"} == {1, 2}
    heads, lines = rank_grid(columns)
    assert heads[2:] == ["PTB-XL 30 %", "PTB-XL 60 %", "CinC21 30 %", "CinC21 60 %"]
    for line, reading in zip(
        lines[:4], ("fitted, fused", "fitted, time", "learned, fused", "learned, time"), strict=True
    ):
        among = ["1 / 1 of 12", "1 / 1 of 12", "1 / 1 of 12", "2 / 2 of 12"]
        assert line == ["ACC", f"SafeECGMatch ({reading})", *among]


def test_one_seed_has_a_difference_without_interval(tables: list[Table]) -> None:
    frame = comparison_frame(compare(with_the_papers_numbers(tables, 0.1, seeds=1), paper_params()))
    assert frame["difference"].to_numpy() == pytest.approx(0.1) and frame["low"].isna().all()


def test_places_share_ties() -> None:
    assert place_of(0.8, [0.9, 0.8 + 1e-14], "acc") == 2
    assert place_of(0.8, [0.9, 0.8], "ece") == 1
    assert place_of(0.8, [], "acc") == 1


def test_printed_comparison_has_labels_and_every_difference(tables: list[Table]) -> None:
    columns = compare(with_the_papers_numbers(tables, 0.1), paper_params())
    latex = comparison_tex(columns, "source", "the remark")
    labels = re.findall(r"\\label\{(.*?)\}", latex)
    assert len(labels) == len(set(labels)) == 4 + 2 + 1 and "tab:paper_vs_ours_benchmark_ptbxl_30" in labels
    assert latex.count("+0.100 [") == len(comparison_frame(columns)) == 264
    assert latex.count("the remark") == 1 and r"\section" not in latex
    assert not math.isnan(columns[0].tau)
