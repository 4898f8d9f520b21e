"""Paper versus ours, printed: one panel per table, dataset and OOD level, three columns per metric."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import groupby

from safeecgmatch.config import PROPOSED
from safeecgmatch.reporting.compare import NOTE, ColumnComparison, Comparison, place
from safeecgmatch.reporting.names import dataset_name, metric_name
from safeecgmatch.reporting.render import MINUS, MISSING, PLUS_MINUS, markdown_table, number, render, signed, tex

TITLES = {"benchmark": "Table 3", "ablation": "Table 2 (ablation)", "sensitivity": "Table 4 (sensitivity)"}
HEADS = ["paper", "ours", "difference"]
METRICS_SIDE_BY_SIDE = 2  # more would be too small in print
GENERATED = "Nothing is compared: our numbers come from generated data."
PLACES = "In brackets the place in the column; readings of one method do not compete, and the best counts for others."


@dataclass(frozen=True)
class Panel:
    """All metrics of one table, dataset and OOD level; the columns have the same rows."""

    name: str
    title: str
    columns: list[ColumnComparison]

    @property
    def lines(self) -> list[tuple[Comparison, ...]]:
        return list(zip(*(column.cells for column in self.columns), strict=True))


def panels(columns: list[ColumnComparison]) -> list[Panel]:
    """Those of real data: nothing generated stands beside the paper's numbers."""
    found = []
    real = [column for column in columns if not column.generated]
    for (table, dataset, ood), members in groupby(real, key=lambda c: (c.table, c.dataset, c.ood)):
        title = f"{TITLES[table]}, {dataset_name(dataset).name}, {ood} % OOD"
        found.append(Panel(f"{table}_{dataset}_{ood}", title, list(members)))
    return found


def cell_texts(column: ColumnComparison, cell: Comparison, style: str) -> list[str]:
    """Published and ours with their places, and the difference with its interval where levels may be compared."""
    printed, own = place(column, cell)
    paper = f"{cell.paper.mean:.3f}{PLUS_MINUS[style]}{cell.paper.std:.3f} ({printed})"
    ours = number(replace(cell.ours, mark="", merged=False), style) + (f" ({own})" if own else "")
    difference = MISSING[style]
    if not math.isnan(cell.difference):
        interval = "" if math.isnan(cell.low) else f" [{signed(cell.low)}, {signed(cell.high)}]"
        difference = f"{signed(cell.difference)}{interval}".replace("-", MINUS[style])
    return [paper, ours, difference]


def panel_notes(panel: Panel) -> list[str]:
    """Rank agreement per metric, and why levels are not compared."""
    taus = [f"{metric_name(column.metric)} {column.tau:+.2f}" for column in panel.columns if not math.isnan(column.tau)]
    notes = [f"Kendall's tau of the order: {', '.join(taus)}."] if taus else []
    barrier = panel.columns[0].barrier
    return notes + ([f"Levels are not compared: {barrier}."] if barrier else [])


def comparison_markdown(columns: list[ColumnComparison], source: str, remark: str) -> str:
    parts = ["# Paper versus ours", NOTE, PLACES, remark, source]
    found = panels(columns)
    for panel in found:
        heads = ["Row", *(f"{metric_name(column.metric)} {head}" for column in panel.columns for head in HEADS)]
        parts += [f"## {panel.title}", markdown_table(heads, _texts(panel, "md")).rstrip(), *panel_notes(panel)]
    return "\n\n".join(parts if found else [parts[0], GENERATED, source]) + "\n"


def _texts(panel: Panel, style: str) -> list[list[str]]:
    return [
        [
            tex(line[0].label) if style == "tex" else line[0].label,
            *(
                text
                for column, cell in zip(panel.columns, line, strict=True)
                for text in cell_texts(column, cell, style)
            ),
        ]
        for line in panel.lines
    ]


def comparison_tex(columns: list[ColumnComparison], source: str, remark: str) -> str:
    prepared = []
    for index, panel in enumerate(panels(columns)):
        parts = [
            Panel(panel.name, panel.title, panel.columns[start : start + METRICS_SIDE_BY_SIDE])
            for start in range(0, len(panel.columns), METRICS_SIDE_BY_SIDE)
        ]
        first = [NOTE, PLACES, remark] if index == 0 else []
        prepared.append(
            {
                "label": f"tab:paper_vs_ours_{panel.name}",
                "caption": tex(f"Paper versus ours: {panel.title}. {source}"),
                "notes": [tex(note.replace("`", "")) for note in [*panel_notes(panel), *first]],
                "parts": [
                    {
                        "metrics": [metric_name(column.metric) for column in part.columns],
                        "lines": [" & ".join(texts) for texts in _texts(part, "tex")],
                    }
                    for part in parts
                ],
            }
        )
    return render("paper_vs_ours.tex.j2", panels=prepared, generated=GENERATED, heads=HEADS)


def rank_grid(columns: list[ColumnComparison]) -> tuple[list[str], list[list[str]]]:
    """The place of SafeECGMatch in every column of Table 3, paper and ours, under each reading."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for column in (column for column in columns if column.table == "benchmark"):
        where = f"{dataset_name(column.dataset).name} {column.ood} %"
        for cell in (cell for cell in column.cells if cell.paper.row == PROPOSED):
            printed, own = place(column, cell)
            among = f"{own} of {1 + len(column.rivals(cell))}" if own else MISSING["md"]
            found.setdefault((metric_name(column.metric), cell.label), {})[where] = f"{printed} / {among}"
    settings = list(dict.fromkeys(where for cells in found.values() for where in cells))
    lines = [[*key, *(cells.get(where, MISSING["md"]) for where in settings)] for key, cells in found.items()]
    return ["", "paper / ours", *settings], lines
