"""The paper's numbers beside ours: a difference with an interval, and no verdict; claims are judged in `verdicts`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd

from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.reporting.deviations import Deviation, barriers
from safeecgmatch.reporting.names import (
    dataset_name,
    direction,
    higher_is_better,
    is_generated,
    metric_name,
    setting_name,
)
from safeecgmatch.reporting.printing import (
    DAGGER,
    MINUS,
    MISSING,
    float_tex,
    markdown_table,
    plus_minus,
    signed,
    tabular,
    tex,
)
from safeecgmatch.reporting.published import ROUNDING, published_frame
from safeecgmatch.reporting.statistics import CONFIDENCE, TIE, Summary
from safeecgmatch.reporting.study import records
from safeecgmatch.reporting.tables import Table

NOTE = (
    "Descriptive: our mean less the printed one, with a 95 % Welch interval from the printed standard deviation and "
    "n = 3 (Table 2's population values rescaled), widened by the rounding of the print. Where the study differs from "
    "the paper's setting, levels are not compared. Kendall's tau-b compares the order of rows with one reading. No "
    "verdict is formed here: three seeds against three cannot tell a difference of 0.02 from none."
)
PLACES = "In brackets the place in the column; readings of one method do not compete, and the best counts for others."
GENERATED = "Nothing is compared: our numbers come from generated data."
UNKNOWN = "Nothing is compared: the paper has none of these settings."
PAPER_TABLES = {"2": "ablation", "3": "benchmark", "4": "sensitivity"}  # Table 1 repeats rows of Table 3
TITLES = {"benchmark": "Table 3", "ablation": "Table 2 (ablation)", "sensitivity": "Table 4 (sensitivity)"}
HEADS = ["paper", "ours", "difference"]
METRICS_SIDE_BY_SIDE = 2  # more would be too small in print
PANEL = ["table", "dataset", "ood"]
CELL = ["dataset", "published", "ood", "metric"]
CSV = [
    *PANEL, "metric", "row", "label", "paper_mean", "paper_std", "ours_mean", "ours_std", "ours_seeds", "difference",
    "low", "high", "column_tau", "not_compared",
]  # fmt: skip


def difference_to_print(ours: Summary, paper: Summary) -> tuple[float, float, float]:
    """Ours less the paper's, and its Welch interval with the roundings of mean and std; no interval for one seed."""
    from scipy.special import stdtrit

    difference = ours.mean - paper.mean
    if ours.seeds < 2:
        return difference, math.nan, math.nan
    parts = [ours.std**2 / ours.seeds, (paper.std + ROUNDING) ** 2 / paper.seeds]
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (ours.seeds - 1) + parts[1] ** 2 / (paper.seeds - 1))
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * sum(parts) ** 0.5 + ROUNDING
    return difference, difference - half, difference + half


def kendall_tau(first: Iterable[float], second: Iterable[float]) -> float:
    """tau-b between two orders of the same rows; NaN for fewer than two."""
    from scipy.stats import kendalltau

    pair = list(first), list(second)
    return float(kendalltau(*pair).statistic) if len(pair[0]) > 1 else math.nan


def place_of(value: float, others: Iterable[float], metric: str) -> int:
    """1 for the best; equal means share the better place."""
    return 1 + sum(direction(metric) * (other - value) > TIE for other in others)


def beside(table: Table) -> pd.DataFrame:
    """The cells of one of our tables that the paper prints too, column by column, with what it prints."""
    name = PAPER_TABLES[table.number]
    cells = table.cells.merge(published_frame(name), on=CELL).assign(table=name)
    cells = cells.rename(columns={name: f"ours_{name}" for name in ("mean", "std", "seeds")})
    order = ["dataset", "ood", "metric"]
    return cells.sort_values(order, kind="stable", key=lambda values: pd.factorize(values)[0])


def compare_column(column: pd.DataFrame, metric: str, barrier: str, generated: bool) -> pd.DataFrame:
    """Levels are compared at the paper's setting alone, the order of the rows on real data of any size."""
    known = column["ours_mean"].notna()
    once = column[known & ~column["published"].duplicated(keep=False) & (not generated)]
    printed = column.drop_duplicates("published")["paper_mean"]
    best = column[known].groupby("published")["ours_mean"].agg("max" if higher_is_better(metric) else "min")
    lines: list[tuple[float, ...]] = []
    for cell in records(column):
        ours = Summary(cell.ours_mean, cell.ours_std, cell.ours_seeds)
        paper = Summary(cell.paper_mean, cell.paper_sample_std, cell.paper_seeds)
        nothing = bool(barrier) or not ours.seeds
        difference, low, high = (math.nan,) * 3 if nothing else difference_to_print(ours, paper)
        rivals = best.drop(cell.published, errors="ignore")
        place = 0 if generated or not ours.seeds else place_of(ours.mean, rivals, metric)
        lines.append((difference, low, high, place_of(paper.mean, printed, metric), place, 1 + len(rivals)))
    names = ["difference", "low", "high", "paper_place", "ours_place", "ours_among"]
    found = pd.concat([column, pd.DataFrame(lines, column.index, names)], axis=1)
    tau = kendall_tau(once["paper_mean"], once["ours_mean"])
    return found.assign(column_tau=tau, not_compared=barrier, generated=generated)


def compare(tables: list[Table], params: Params, differences: list[Deviation]) -> pd.DataFrame:
    """Every cell of Tables 2, 3 and 4 that both the paper and this study have; the columns `CSV`, and places."""
    columns = []
    for cells in (beside(table) for table in tables if table.number in PAPER_TABLES):
        for (_, dataset, _, metric), column in cells.groupby([*PANEL, "metric"], sort=False):
            barrier = ", ".join(barriers(differences, str(dataset)))
            columns.append(compare_column(column, str(metric), barrier, is_generated(params, str(dataset))))
    nothing = pd.DataFrame(columns=[*CSV, "generated"]).astype({"generated": bool})
    return pd.concat(columns, ignore_index=True) if columns else nothing


def why_nothing(comparison: pd.DataFrame) -> str:
    """Why no number of ours is beside one of the paper's; empty where some do."""
    return UNKNOWN if comparison.empty else GENERATED if comparison["generated"].all() else ""


def panels(comparison: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """All metrics of one table, dataset and OOD level, by title; nothing generated is beside the paper."""
    real = comparison[~comparison["generated"]]
    return {
        f"{TITLES[str(table)]}, {dataset_name(str(dataset)).name}, {ood} % OOD": panel
        for (table, dataset, ood), panel in real.groupby(PANEL, sort=False)
    }


def cell_texts(cell: Any, style: str) -> list[str]:
    """Published and ours with their places, and the difference with its interval where levels may be compared."""
    paper = f"{plus_minus(cell.paper_mean, cell.paper_std, style)} ({cell.paper_place})"
    dagger = DAGGER[style] if 0 < cell.ours_seeds < cell.seeds_asked else ""
    place = f" ({cell.ours_place})" if cell.ours_place else ""
    ours = plus_minus(cell.ours_mean, cell.ours_std, style) + dagger + place
    difference = MISSING[style]
    if not math.isnan(cell.difference):
        interval = "" if math.isnan(cell.low) else f" [{signed(cell.low)}, {signed(cell.high)}]"
        difference = f"{signed(cell.difference)}{interval}".replace("-", MINUS[style])
    return [paper, ours, difference]


def panel_lines(panel: pd.DataFrame, style: str) -> list[list[str]]:
    """A line for each row: its label, then paper, ours and difference of each metric."""
    return [
        [
            tex(str(label)) if style == "tex" else str(label),
            *(text for cell in records(cells) for text in cell_texts(cell, style)),
        ]
        for (_, label), cells in panel.groupby(["row", "label"], sort=False)
    ]


def panel_notes(panel: pd.DataFrame) -> list[str]:
    """Rank agreement per metric, and why levels are not compared."""
    taus = panel.drop_duplicates("metric").dropna(subset="column_tau")
    texts = [f"{metric_name(column.metric)} {column.column_tau:+.2f}" for column in records(taus)]
    notes = [f"Kendall's tau of the order: {', '.join(texts)}."] if texts else []
    barrier = panel["not_compared"].iloc[0]
    return notes + ([f"Levels are not compared: {barrier}."] if barrier else [])


def comparison_markdown(comparison: pd.DataFrame, source: str, remark: str) -> str:
    found = panels(comparison)
    parts = ["# Paper versus ours", *([NOTE, PLACES, remark] if found else [why_nothing(comparison)]), source]
    for title, panel in found.items():
        heads = ["Row", *(f"{metric_name(metric)} {head}" for metric in panel["metric"].unique() for head in HEADS)]
        parts += [f"## {title}", markdown_table(heads, panel_lines(panel, "md")).rstrip(), *panel_notes(panel)]
    return "\n\n".join(parts) + "\n"


def comparison_tex(comparison: pd.DataFrame, source: str, remark: str) -> str:
    floats: list[str] = []
    for title, panel in panels(comparison).items():
        metrics, parts = list(panel["metric"].unique()), []
        for start in range(0, len(metrics), METRICS_SIDE_BY_SIDE):
            shown = metrics[start : start + METRICS_SIDE_BY_SIDE]
            lines = panel_lines(panel[panel["metric"].isin(shown)], "tex")
            names = {metric_name(metric): len(HEADS) for metric in shown}
            rows = [rf"{' & '.join(line)} \\" for line in lines]
            parts.append(tabular(1, names, ["Row", *HEADS * len(shown)], rows))
        table, dataset, ood = panel[PANEL].iloc[0]
        notes = [*panel_notes(panel), *([] if floats else [NOTE, PLACES, remark])]
        caption = f"Paper versus ours: {title}. {source}"
        floats.append(float_tex(f"paper_vs_ours_{table}_{dataset}_{ood}", caption, notes, parts))
    return "".join(floats) or f"% {why_nothing(comparison)}\n"


def rank_grid(comparison: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """The place of SafeECGMatch in every column of Table 3, paper and ours, under each reading."""
    own = comparison[(comparison["table"] == "benchmark") & (comparison["published"] == PROPOSED)]
    places = [
        f"{cell.paper_place} / " + (f"{cell.ours_place} of {cell.ours_among}" if cell.ours_place else MISSING["md"])
        for cell in records(own)
    ]
    where = [setting_name(cell.dataset, cell.ood) for cell in records(own)]
    named = own.assign(places=places, where=where, metric=own["metric"].map(metric_name))
    grid = named.pivot_table("places", ["metric", "label"], "where", aggfunc="first", fill_value="–", sort=False)
    return ["", "paper / ours", *grid.columns], [
        [*names, *line] for names, line in zip(grid.index, grid.to_numpy(), strict=True)
    ]
