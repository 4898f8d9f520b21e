"""The paper's numbers beside ours: a difference with an interval, and no verdict; claims are judged in `verdicts`."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pandas as pd

from safeecgmatch.config import Params
from safeecgmatch.reporting.barriers import barriers, generated
from safeecgmatch.reporting.names import higher_is_better
from safeecgmatch.reporting.published import PublishedCell, published
from safeecgmatch.reporting.results import SeedMean
from safeecgmatch.reporting.statistics import CONFIDENCE, TIE, Summary
from safeecgmatch.reporting.tables import Table

ROUNDING = 0.0005  # of a number printed with three decimals
NOTE = (
    "Descriptive: our mean less the printed one, with a 95 % Welch interval from the printed standard deviation and "
    "n = 3 (Table 2's population values rescaled), widened by the rounding of the print. Where the study differs from "
    "the paper's setting, levels are not compared. Kendall's tau-b compares the order of rows with one reading. No "
    "verdict is formed here: three seeds against three cannot tell a difference of 0.02 from none."
)
PAPER_TABLES = {"table2_ablation": "ablation", "table3_benchmark": "benchmark", "table4_sensitivity": "sensitivity"}


@dataclass(frozen=True)
class Comparison:
    """One printed cell of the paper beside ours; NaN where a level may not be compared."""

    table: str
    row: str
    label: str
    paper: PublishedCell
    ours: SeedMean
    difference: float
    low: float
    high: float


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
    generated: bool

    def rivals(self, cell: Comparison) -> list[float]:
        """Our means of the other methods; one that has several readings counts by its best."""
        best: dict[str, float] = {}
        for other in self.cells:
            if other.paper.row != cell.paper.row and other.ours.summary:
                mean = other.ours.summary.mean
                known = best.setdefault(other.paper.row, mean)
                best[other.paper.row] = max(known, mean) if higher_is_better(self.metric) else min(known, mean)
        return list(best.values())


def difference_to_print(ours: Summary, paper: Summary, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Ours less the paper's, and its Welch interval with the roundings of mean and std; no interval for one seed."""
    from scipy.special import stdtrit

    difference = ours.mean - paper.mean
    if ours.seeds < 2:
        return difference, math.nan, math.nan
    parts = [ours.std**2 / ours.seeds, (paper.std + ROUNDING) ** 2 / paper.seeds]
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (ours.seeds - 1) + parts[1] ** 2 / (paper.seeds - 1))
    half = float(stdtrit(freedom, (1 + confidence) / 2)) * sum(parts) ** 0.5 + ROUNDING
    return difference, difference - half, difference + half


def kendall_tau(pairs: list[tuple[float, float]]) -> float:
    """tau-b between two orders of the same rows; NaN for fewer than two."""
    from scipy.stats import kendalltau

    return float(kendalltau(*zip(*pairs, strict=True)).statistic) if len(pairs) > 1 else math.nan


def compare_column(
    table: str, dataset: str, metric: str, cells: list[tuple[str, str, PublishedCell, SeedMean]], params: Params
) -> ColumnComparison:
    """Levels are compared at the paper's setting alone, the order of the rows on real data of any size."""
    barrier, made_up = ", ".join(barriers(params, dataset)), generated(params, dataset)
    nothing = (math.nan, math.nan, math.nan)
    compared = [
        Comparison(
            table,
            row,
            label,
            paper,
            ours,
            *(nothing if barrier or ours.summary is None else difference_to_print(ours.summary, paper.summary)),
        )
        for row, label, paper, ours in cells
    ]
    once = Counter(paper.row for _, _, paper, _ in cells)
    ranked = [
        (c.paper.mean, c.ours.summary.mean)
        for c in compared
        if c.ours.summary is not None and once[c.paper.row] == 1 and not made_up
    ]
    return ColumnComparison(table, dataset, cells[0][2].ood, metric, compared, kendall_tau(ranked), barrier, made_up)


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
                        key = (dataset, row.published, ood, column.metric)
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
                    "low": cell.low,
                    "high": cell.high,
                    "column_tau": column.tau,
                    "not_compared": column.barrier,
                }
            )
    return pd.DataFrame(lines)


def place_of(value: float, others: list[float], metric: str) -> int:
    """1 for the best; equal means share the better place."""
    sign = 1 if higher_is_better(metric) else -1
    return 1 + sum(sign * (other - value) > TIE for other in others)


def place(column: ColumnComparison, cell: Comparison) -> tuple[int, int | None]:
    """Of a row in the paper's column and in ours; generated data have no place beside the paper's."""
    printed = {other.paper.row: other.paper.mean for other in column.cells}
    paper = place_of(cell.paper.mean, list(printed.values()), column.metric)
    if column.generated or cell.ours.summary is None:
        return paper, None
    return paper, place_of(cell.ours.summary.mean, column.rivals(cell), column.metric)
