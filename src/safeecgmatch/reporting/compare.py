"""The paper's numbers beside ours, with a verdict by a rule that is fixed before any number is seen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.reporting.names import higher_is_better
from safeecgmatch.reporting.published import PublishedCell, published
from safeecgmatch.reporting.results import SeedMean
from safeecgmatch.reporting.statistics import Summary, holm, kendall_tau, welch_p
from safeecgmatch.reporting.tables import Table

LEVEL = 0.05
MARGIN = 0.02
RULE = (
    f"Rule, fixed beforehand: a cell is `different` if Welch's t test from the printed mean, standard deviation and "
    f"n = 3 against our seeds has p < {LEVEL} after Holm's correction within its column (dataset, OOD level, metric); "
    f"else `consistent` if the means differ by at most {MARGIN}, and `undecided` if they differ by more, because a "
    "test on so few seeds that finds nothing proves nothing. Kendall's tau-b compares the order of the rows. The "
    "paper's Table 2 prints population standard deviations; they are rescaled to sample ones for the test."
)
SYMBOLS = {"consistent": "=", "different": "≠", "undecided": "?"}
PAPER_TABLES = {"table2_ablation": "ablation", "table3_benchmark": "benchmark", "table4_sensitivity": "sensitivity"}

PAPER_SIZES = {"sampling_rate": 500, "width": 64, "iterations": 50_000, "batch": 64}
PAPER_LABELS = {"ptbxl": 50, "cinc21": 104}
PAPER_POOLS = {"ptbxl": 14_850, "cinc21": 30_826}


def size_barriers(params: Params, dataset: str) -> list[str]:
    """In which sizes the study is not the paper's: it may be compared by eye, not tested."""
    source = params.data.source(dataset)
    pairs = [
        (params.data.sampling_rate, PAPER_SIZES["sampling_rate"], "{} Hz"),
        (params.model.width, PAPER_SIZES["width"], "width {}"),
        (params.train.iterations, PAPER_SIZES["iterations"], "{:,} iterations"),
        (params.train.batch, PAPER_SIZES["batch"], "batches of {}"),
        (source.labels_per_class, PAPER_LABELS.get(dataset), "{} labels per class"),
        (source.pool_size, PAPER_POOLS.get(dataset), "a pool of {:,}"),
    ]
    found = [text.format(ours) for ours, paper, text in pairs if ours != paper]
    return found + ([] if params.split.strategy == "random" else [f"{params.split.strategy} split"])


def barriers(params: Params, dataset: str) -> list[str]:
    """Why our numbers on this dataset cannot be tested against the paper's; empty if they can."""
    generated = ["generated data"] if params.data.source(dataset).source == "phantom" else []
    return generated + size_barriers(params, dataset)


@dataclass(frozen=True)
class Comparison:
    """One printed cell of the paper beside ours; NaN where nothing may be said."""

    table: str
    row: str
    label: str
    paper: PublishedCell
    ours: SeedMean
    difference: float
    p: float
    p_holm: float
    verdict: str


@dataclass(frozen=True)
class ColumnComparison:
    """One column of a paper table (dataset, OOD level, metric): its cells, rank agreement and barrier."""

    table: str
    dataset: str
    ood: int
    metric: str
    cells: list[Comparison]
    tau: float
    barrier: str


def verdict(difference: float, p_holm: float, barrier: str) -> str:
    if barrier:
        return f"not compared: {barrier}"
    if math.isnan(difference):
        return "not compared: missing here"
    if math.isnan(p_holm):
        return "not tested: one seed"
    if p_holm < LEVEL:
        return "different"
    return "consistent" if abs(difference) <= MARGIN else "undecided"


def compare_column(
    table: str, dataset: str, metric: str, cells: list[tuple[str, str, PublishedCell, SeedMean]], params: Params
) -> ColumnComparison:
    """Differences on real data of any size; tests and verdicts only where the sizes are the paper's too."""
    generated = params.data.source(dataset).source == "phantom"
    barrier = ", ".join(barriers(params, dataset))
    differences, p_values = [], []
    for _, _, paper, ours in cells:
        summary = None if generated else ours.summary
        differences.append(summary.mean - paper.mean if summary else math.nan)
        p_values.append(welch_p(paper.summary, summary) if summary and not barrier else math.nan)
    adjusted = holm(p_values)
    compared = [
        Comparison(table, row, label, paper, ours, difference, p, p_holm, verdict(difference, p_holm, barrier))
        for (row, label, paper, ours), difference, p, p_holm in zip(cells, differences, p_values, adjusted, strict=True)
    ]
    ranked = [(c.paper.mean, c.ours.summary.mean) for c in compared if c.ours.summary is not None and not generated]
    tau = kendall_tau([a for a, _ in ranked], [b for _, b in ranked]) if ranked else math.nan
    return ColumnComparison(table, dataset, cells[0][2].ood, metric, compared, tau, barrier)


def compare(tables: list[Table], params: Params) -> list[ColumnComparison]:
    """Every column of Tables 2, 3 and 4 that both the paper and this study have."""
    found = []
    for table in tables:
        if table.name not in PAPER_TABLES:
            continue
        printed = published(PAPER_TABLES[table.name])
        levels = list(dict.fromkeys(row.runs.ood for row in table.rows))
        for dataset in dict.fromkeys(column.dataset for column in table.columns):
            for ood in levels:
                for j, column in enumerate(table.columns):
                    cells = []
                    for row, values in zip(table.rows, table.values, strict=True):
                        key = (dataset, row.key, ood, column.metric)
                        if column.dataset == dataset and row.runs.ood == ood and key in printed:
                            cells.append((row.key, row.label, printed[key], values[j]))
                    if cells:
                        found.append(compare_column(PAPER_TABLES[table.name], dataset, column.metric, cells, params))
    return found


def comparison_frame(columns: list[ColumnComparison]) -> pd.DataFrame:
    lines: list[dict[str, Any]] = []
    for column in columns:
        for cell in column.cells:
            ours = cell.ours.summary or Summary(math.nan, math.nan, 0)
            lines.append(
                {
                    "table": column.table,
                    "dataset": column.dataset,
                    "ood": column.ood,
                    "metric": column.metric,
                    "row": cell.row,
                    "label": cell.label,
                    "paper_mean": cell.paper.mean,
                    "paper_std": cell.paper.std,
                    "ours_mean": ours.mean,
                    "ours_std": ours.std,
                    "ours_seeds": ours.seeds,
                    "difference": cell.difference,
                    "p": cell.p,
                    "p_holm": cell.p_holm,
                    "verdict": cell.verdict,
                    "column_tau": column.tau,
                }
            )
    return pd.DataFrame(lines)


@dataclass(frozen=True)
class Rank:
    """The place of the paper's method in one column of Table 3; None where it has no number."""

    dataset: str
    ood: int
    metric: str
    paper: int | None
    ours: int | None
    methods: int


def place(values: dict[str, float], metric: str) -> int | None:
    """1 for the best; methods with the same mean share the better place."""
    if PROPOSED not in values:
        return None
    sign = -1 if higher_is_better(metric) else 1
    return 1 + sum(sign * value < sign * values[PROPOSED] for value in values.values())


def proposed_ranks(columns: list[ColumnComparison]) -> list[Rank]:
    """The paper's claim is a place of 1 or 2 in every column."""
    ranks = []
    for column in (column for column in columns if column.table == "benchmark"):
        paper = {cell.row: cell.paper.mean for cell in column.cells}
        ours = {cell.row: cell.ours.summary.mean for cell in column.cells if cell.ours.summary}
        ranks.append(
            Rank(
                column.dataset,
                column.ood,
                column.metric,
                place(paper, column.metric),
                place(ours, column.metric),
                len(ours),
            )
        )
    return ranks


@dataclass(frozen=True)
class Gain:
    """SafeECGMatch minus CaliMatch in one column, with Welch's p, in the paper and here."""

    dataset: str
    ood: int
    metric: str
    paper: float
    paper_p: float
    ours: float
    ours_p: float


def gains_over(columns: list[ColumnComparison], rival: str = "calimatch") -> list[Gain]:
    """The step that the paper adds to its ancestor; uncorrected p, because each column asks its own question."""
    gains = []
    for column in (column for column in columns if column.table == "benchmark"):
        cells = {cell.row: cell for cell in column.cells}
        if rival not in cells or PROPOSED not in cells:
            continue
        new, old = cells[PROPOSED], cells[rival]
        ours, ours_p = math.nan, math.nan
        if new.ours.summary is not None and old.ours.summary is not None:
            ours = new.ours.summary.mean - old.ours.summary.mean
            ours_p = welch_p(new.ours.summary, old.ours.summary)
        paper = new.paper.mean - old.paper.mean
        paper_p = welch_p(new.paper.summary, old.paper.summary)
        gains.append(Gain(column.dataset, column.ood, column.metric, paper, paper_p, ours, ours_p))
    return gains
