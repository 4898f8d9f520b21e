"""Paper versus ours, printed: one panel per table, dataset and OOD level, four columns per metric."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from safeecgmatch.reporting.compare import RULE, SYMBOLS, ColumnComparison, Comparison, Gain, Rank
from safeecgmatch.reporting.names import dataset_name, metric_name
from safeecgmatch.reporting.render import MISSING, markdown_table, number, render, rounded, tex

TITLES = {"benchmark": "Table 3", "ablation": "Table 2 (ablation)", "sensitivity": "Table 4 (sensitivity)"}
LEGEND = "Verdict: = consistent, ≠ different, ? undecided, – not compared."
METRICS_SIDE_BY_SIDE = 2  # more would be too small in print
TEX_SYMBOLS = {"consistent": "$=$", "different": r"$\neq$", "undecided": "?"}


@dataclass(frozen=True)
class Panel:
    """All metrics of one table, dataset and OOD level; the columns have the same rows."""

    title: str
    columns: list[ColumnComparison]

    @property
    def lines(self) -> list[tuple[Comparison, ...]]:
        return list(zip(*(column.cells for column in self.columns), strict=True))


def panels(columns: list[ColumnComparison]) -> list[Panel]:
    found = []
    for (table, dataset, ood), members in groupby(columns, key=lambda c: (c.table, c.dataset, c.ood)):
        found.append(Panel(f"{TITLES[table]}, {dataset_name(dataset).name}, {ood} % OOD", list(members)))
    return found


def signed(value: float) -> str:
    text = rounded(value)
    return text if text.startswith("-") else f"+{text}"


def cell_texts(cell: Comparison, style: str) -> list[str]:
    """Published, ours, difference, verdict as a symbol."""
    dash, plus_minus = MISSING[style], r"$\pm$" if style == "tex" else "±"
    difference = dash if math.isnan(cell.difference) else signed(cell.difference)
    symbols = TEX_SYMBOLS if style == "tex" else SYMBOLS
    return [
        f"{cell.paper.mean:.3f}{plus_minus}{cell.paper.std:.3f}",
        number(replace(cell.ours, mark="", merged=False), style),
        f"${difference}$" if style == "tex" and difference != dash else difference,
        symbols.get(cell.verdict, dash),
    ]


def agreement(column: ColumnComparison) -> str:
    """What is said below a column: rank agreement, and why there is no verdict."""
    tau = "" if math.isnan(column.tau) else f"Kendall's tau {column.tau:+.2f}"
    reason = f"not compared: {column.barrier}" if column.barrier else ""
    return "; ".join(part for part in (tau, reason) if part) or "nothing to compare"


def panel_notes(panel: Panel) -> list[str]:
    """One line for all metrics where they share a reason, else one per metric."""
    by_text: dict[str, list[str]] = {}
    for column in panel.columns:
        by_text.setdefault(agreement(column), []).append(metric_name(column.metric))
    return [f"{', '.join(metrics)}: {text}." for text, metrics in by_text.items()]


def panel_markdown(panel: Panel) -> str:
    heads = ["Row"]
    for column in panel.columns:
        name = metric_name(column.metric)
        heads += [f"{name} paper", "ours", "difference", "verdict"]
    lines = [[line[0].label, *(text for cell in line for text in cell_texts(cell, "md"))] for line in panel.lines]
    return markdown_table(heads, lines) + "\n" + "\n".join(panel_notes(panel)) + "\n"


def comparison_markdown(columns: list[ColumnComparison], source: str) -> str:
    parts = ["# Paper versus ours", RULE, LEGEND, source]
    for panel in panels(columns):
        parts += [f"## {panel.title}", panel_markdown(panel).rstrip()]
    return "\n\n".join(parts) + "\n"


def comparison_tex(columns: list[ColumnComparison], source: str) -> str:
    prepared = [
        {
            "title": tex(panel.title),
            "notes": [tex(note) for note in panel_notes(panel)],
            "parts": [
                _tex_part(Panel(panel.title, panel.columns[start : start + METRICS_SIDE_BY_SIDE]))
                for start in range(0, len(panel.columns), METRICS_SIDE_BY_SIDE)
            ],
        }
        for panel in panels(columns)
    ]
    rule = tex(RULE.replace("`", ""))
    legend = tex(LEGEND)
    return render("paper_vs_ours.tex.j2", panels=prepared, rule=rule, legend=legend, source=tex(source))


def _tex_part(panel: Panel) -> dict[str, Any]:
    return {
        "metrics": [metric_name(column.metric) for column in panel.columns],
        "lines": [
            (tex(line[0].label), [text for cell in line for text in cell_texts(cell, "tex")]) for line in panel.lines
        ],
    }


def verdict_counts(columns: list[ColumnComparison]) -> str:
    """One line per column of Table 3: how many cells got which verdict, and the rank agreement."""
    lines = []
    for column in columns:
        if column.table != "benchmark":
            continue
        counts = Counter(cell.verdict for cell in column.cells)
        title = f"{dataset_name(column.dataset).name}, {column.ood} %, {metric_name(column.metric)}"
        numbers = [str(counts[name]) if not column.barrier else MISSING["md"] for name in SYMBOLS]
        tau = MISSING["md"] if math.isnan(column.tau) else f"{column.tau:+.2f}"
        lines.append([title, *numbers, tau, column.barrier or ""])
    return markdown_table(["Column of Table 3", *SYMBOLS, "Kendall's tau", "not tested because"], lines)


def rank_markdown(ranks: list[Rank]) -> str:
    settings = list(dict.fromkeys((rank.dataset, rank.ood) for rank in ranks))
    by_key = {(rank.metric, rank.dataset, rank.ood): rank for rank in ranks}
    lines = []
    for metric in dict.fromkeys(rank.metric for rank in ranks):
        cells = []
        for dataset, ood in settings:
            rank = by_key[metric, dataset, ood]
            ours = MISSING["md"] if rank.ours is None else f"{rank.ours} of {rank.methods}"
            cells.append(f"{rank.paper} / {ours}")
        lines.append([metric_name(metric), *cells])
    return markdown_table(["paper / ours", *(f"{dataset_name(d).name} {ood} %" for d, ood in settings)], lines)


def gain_markdown(gains: list[Gain]) -> str:
    def shown(value: float, p: float) -> list[str]:
        dash = MISSING["md"]
        chance = dash if math.isnan(p) else "< 0.01" if p < 0.01 else f"{p:.2f}"
        return [dash if math.isnan(value) else signed(value), chance]

    lines = [
        [
            f"{dataset_name(gain.dataset).name}, {gain.ood} %, {metric_name(gain.metric)}",
            *shown(gain.paper, gain.paper_p),
            *shown(gain.ours, gain.ours_p),
        ]
        for gain in gains
    ]
    return markdown_table(["Column", "paper", "p", "ours", "p"], lines)
