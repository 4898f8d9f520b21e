from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from safeecgmatch.config import Params
from safeecgmatch.reporting.catalogue import build_tables
from safeecgmatch.reporting.compare import (
    CELL,
    CSV,
    PAPER_TABLES,
    ROUNDING,
    compare,
    comparison_markdown,
    comparison_tex,
    difference_to_print,
    place_of,
    rank_grid,
    why_nothing,
)
from safeecgmatch.reporting.deviations import deviations
from safeecgmatch.reporting.published import published_frame
from safeecgmatch.reporting.statistics import Summary
from safeecgmatch.reporting.tables import Table
from tests.reporting.conftest import MadeUp
from tests.reporting.synthetic import paper_params


@pytest.fixture(scope="module")
def tables(study: MadeUp) -> list[Table]:
    return build_tables(study.evaluation)


def with_the_papers_numbers(tables: list[Table], shift: float, seeds: int = 3) -> list[Table]:
    """Our tables with the paper's own numbers, moved by `shift`; rows that the paper does not have are empty."""
    copies = []
    for table in (table for table in tables if table.number in PAPER_TABLES):
        paper = table.cells[CELL].merge(published_frame(PAPER_TABLES[table.number]), how="left", on=CELL)
        ours = {"mean": paper["paper_mean"] + shift, "std": paper["paper_sample_std"], "seeds_asked": seeds}
        count = paper["paper_mean"].notna() * seeds
        copies.append(replace(table, cells=table.cells.assign(**ours, seeds=count)))
    return copies


def compared(tables: list[Table], params: Params) -> pd.DataFrame:
    return compare(tables, params, deviations(params))


def test_generated_data_stand_nowhere_beside_the_paper(study: MadeUp, tables: list[Table]) -> None:
    frame = compared(tables, study.params)
    assert len(frame) == (11 + 4) * 16 + 3 * 4 + 3 * 4  # four readings of SafeECGMatch
    assert frame[["difference", "low", "high", "column_tau"]].isna().all(axis=None)
    assert frame["not_compared"].str.startswith("generated data").all()
    text = comparison_markdown(frame, "source", "remark")
    assert "generated data" in text and "0.852" not in text
    assert r"\begin{table" not in comparison_tex(frame, "source", "remark")
    assert (frame["ours_place"] == 0).all()


def test_every_line_is_our_cell_beside_the_papers(study: MadeUp, tables: list[Table]) -> None:
    """In the order of the tables, dataset by dataset, level by level, metric by metric."""
    frame = compared(tables, study.params)
    assert list(frame["table"].unique()) == ["ablation", "benchmark", "sensitivity"]
    assert not frame.duplicated(["table", "dataset", "ood", "metric", "row"]).any()
    benchmark = frame[frame["table"] == "benchmark"]
    columns = benchmark[["dataset", "ood", "metric"]].drop_duplicates().to_numpy().tolist()
    assert columns[:5] == [*(["ptbxl", 30, metric] for metric in ("acc", "ece", "ace", "sce")), ["ptbxl", 60, "acc"]]
    ours = {table.number: table for table in tables}["3"].frame()
    key = ["dataset", "ood", "metric", "row"]
    means = ours.set_index(key)["mean"]
    assert benchmark["ours_mean"].tolist() == [means[tuple(line)] for line in benchmark[key].to_numpy()]
    assert benchmark.set_index(key).loc[("cinc21", 60, "ece", "calimatch"), ["paper_mean", "paper_std"]].tolist() == [
        0.103, 0.021,
    ]  # fmt: skip


def test_settings_that_the_paper_does_not_have_are_not_compared(study: MadeUp, tables: list[Table]) -> None:
    other = [replace(table, cells=table.cells.assign(ood=45)) for table in tables]
    frame = compared(other, study.params)
    assert list(frame.columns)[: len(CSV)] == CSV and frame.empty
    assert why_nothing(frame) in comparison_markdown(frame, "source", "remark")
    assert "none of these settings" in comparison_tex(frame, "source", "remark")


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
    frame = compared(with_the_papers_numbers(tables, 0.1), paper_params(model={"width": 16}))
    assert frame["difference"].isna().all() and frame["column_tau"].to_numpy() == pytest.approx(1.0)
    text = comparison_markdown(frame, "source", "remark")
    assert "0.852±0.005 (1) | 0.952±0.005 (1) | –" in text and "Levels are not compared: width 16." in text


def test_the_papers_own_numbers_differ_by_nothing(tables: list[Table]) -> None:
    frame = compared(with_the_papers_numbers(tables, 0.0), paper_params())
    assert frame["difference"].abs().max() < 1e-12
    assert ((frame["low"] < 0) & (frame["high"] > 0)).all()
    assert (frame["paper_place"] == frame["ours_place"]).all()
    assert set(frame.loc[frame["published"] == "safeecgmatch", "paper_place"]) == {1, 2}
    heads, lines = rank_grid(frame)
    assert heads[2:] == ["PTB-XL 30 %", "PTB-XL 60 %", "CinC21 30 %", "CinC21 60 %"]
    for line, reading in zip(
        lines[:4], ("fitted, fused", "fitted, time", "learned, fused", "learned, time"), strict=True
    ):
        among = ["1 / 1 of 12", "1 / 1 of 12", "1 / 1 of 12", "2 / 2 of 12"]
        assert line == ["ACC", f"SafeECGMatch ({reading})", *among]


def test_one_seed_has_a_difference_without_interval(tables: list[Table]) -> None:
    frame = compared(with_the_papers_numbers(tables, 0.1, seeds=1), paper_params())
    assert frame["difference"].to_numpy() == pytest.approx(0.1) and frame["low"].isna().all()


def test_places_share_ties() -> None:
    assert place_of(0.8, [0.9, 0.8 + 1e-14], "acc") == 2
    assert place_of(0.8, [0.9, 0.8], "ece") == 1
    assert place_of(0.8, [], "acc") == 1


def test_printed_comparison_has_labels_and_every_difference(tables: list[Table]) -> None:
    frame = compared(with_the_papers_numbers(tables, 0.1), paper_params())
    latex = comparison_tex(frame, "source", "the remark")
    labels = re.findall(r"\\label\{(.*?)\}", latex)
    assert len(labels) == len(set(labels)) == 4 + 2 + 1 and "tab:paper_vs_ours_benchmark_ptbxl_30" in labels
    assert latex.count("+0.100 [") == len(frame) == 264
    assert latex.count("the remark") == 1 and r"\section" not in latex
    assert frame["column_tau"].notna().all()
