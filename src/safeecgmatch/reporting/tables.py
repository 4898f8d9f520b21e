"""A table as data: rows, columns, values, marks; `catalogue` says which tables there are, `render` prints them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.reporting.budget import LAST, LAST_FIVE, OWN_BEST
from safeecgmatch.reporting.names import Name, data_name, is_ranked, metric_name
from safeecgmatch.reporting.provenance import floor_notes, provenance
from safeecgmatch.reporting.results import Results, SeedMean, marks
from safeecgmatch.reporting.rows import CALIMATCH_TWIN, SUPERVISED, Row, rules

STD_NOTE = (
    "Mean ± sample standard deviation (ddof = 1) over the seeds; a dash is a missing cell. The CSV has full precision "
    "and 95 % t-intervals."
)
MARK_NOTE = (
    "Best results are bold and second-best underlined within each OOD setting and part of the table, from unrounded "
    "means; ties share a mark."
)
UNMARKED_NOTE = "Rows that are not in the paper are not ranked."
READINGS_NOTE = (
    "SafeECGMatch is printed under every reading that was run, none preferred: temperatures {rules}; prediction fused "
    "(the mean of both branches) or of the time branch. Both predictions come from one run, whose checkpoint is chosen "
    "by the validation accuracy of the {reported} prediction."
)
CALIMATCH_NOTE = (
    "With learned temperatures the time branch trains as CaliMatch does, byte for byte; only the choice of the "
    "checkpoint differs."
)
INCOMPLETE_NOTE = "† Mean of fewer seeds than the grid asks for; the CSV gives their number."
MERGED_NOTE = "Supervised never sees the pool: its runs at all OOD levels are equal, and printed once."
RULES = {"fitted": "fitted on validation", "learned": "learned by gradient"}
GAIN_NOTE = (
    "A gain is a difference paired by seed and test record, with its 95 % interval from contrasts.csv; positive is "
    "better, in ECE as in ACC. It takes two seeds."
)
ENDINGS = {"posthoc": " (T)", LAST: " last", LAST_FIVE: " last 5", OWN_BEST: " own best"}


@dataclass(frozen=True)
class Column:
    dataset: str
    metric: str
    scaling: str = "none"

    @property
    def header(self) -> str:
        return metric_name(self.metric) + ENDINGS.get(self.scaling, "")


@dataclass(frozen=True)
class Table:
    """`values[i][j]` is row i, column j. The frame, the LaTeX, the Markdown and the HTML all come from here."""

    name: str
    title: str
    caption: str
    source: str
    rows: list[Row]
    columns: list[Column]
    values: list[list[SeedMean]]
    data_names: dict[str, Name]
    notes: list[str] = field(default_factory=list)
    first_head: str = "Method"
    spread: bool = True  # print the standard deviation

    @property
    def show_ood(self) -> bool:
        """A level that all rows share stands in the caption."""
        return len({row.runs.ood for row in self.rows}) > 1

    def frame(self) -> pd.DataFrame:
        """Tidy, at full precision: one line per printed cell."""
        lines: list[dict[str, Any]] = []
        for row, values in zip(self.rows, self.values, strict=True):
            for column, value in zip(self.columns, values, strict=True):
                low, high = value.interval
                lines.append(
                    {
                        "row": row.key,
                        "label": row.label,
                        "ood": row.runs.ood,
                        "dataset": column.dataset,
                        "metric": column.metric,
                        "scaling": column.scaling,
                        "mean": value.summary.mean if value.summary else None,
                        "std": value.summary.std if value.summary else None,
                        "interval_low": low,
                        "interval_high": high,
                        "seeds": value.summary.seeds if value.summary else 0,
                        "seeds_asked": value.expected,
                        "mark": value.mark,
                        "merged": value.merged,
                    }
                )
        return pd.DataFrame(lines)


def value_of(results: Results, row: Row, column: Column) -> SeedMean:
    if row.pair:
        return results.gain(column.dataset, row.runs.ood, row.pair, column.metric, column.scaling)
    return results.value(column.dataset, row.runs, column.metric, column.scaling)


def fill(results: Results, rows: list[Row], columns: list[Column]) -> list[list[SeedMean]]:
    """Values of a table, marked within each OOD level and section; Supervised is merged whole or not at all."""
    values = [[value_of(results, row, column) for column in columns] for row in rows]
    for group in {(row.runs.ood, row.section) for row in rows}:
        members = [i for i, row in enumerate(rows) if (row.runs.ood, row.section) == group and row.ranked]
        for j, column in enumerate(columns):
            if is_ranked(column.metric):
                for i, mark in zip(members, marks([values[i][j] for i in members], column.metric), strict=True):
                    values[i][j] = replace(values[i][j], mark=mark)
    block = [i for i, row in enumerate(rows) if row.key == SUPERVISED]
    if len(block) > 1 and _one_experiment(results, [rows[i] for i in block], columns):
        same_marks = all(len({values[i][j].mark for i in block}) == 1 for j in range(len(columns)))
        for i in block:
            values[i] = [replace(value, merged=same_marks) for value in values[i]]
    return values


def _one_experiment(results: Results, rows: list[Row], columns: list[Column]) -> bool:
    """Equal values for every seed in every column: different predictions would not agree in the last bit."""
    for column in columns:
        first, *others = (results.by_seed(column.dataset, row.runs, column.metric, column.scaling) for row in rows)
        if not first or any(other != first for other in others):
            return False
    return True


def columns_for(datasets: Sequence[str], *metrics: str, scaling: str = "none") -> list[Column]:
    return [Column(dataset, metric, scaling) for dataset in datasets for metric in metrics]


def reported_prediction(results: Results) -> str:
    """Of SafeECGMatch, which the protocol decides; empty before its first run."""
    return results.reported.get(PROPOSED, "")


def listed(names: Sequence[str]) -> str:
    return " and ".join(names)


class TableMaker:
    """Makes tables of one study, each with the notes that its values ask for."""

    def __init__(self, params: Params, metrics: pd.DataFrame, runs: pd.DataFrame, contrasts: pd.DataFrame) -> None:
        self.params, self.runs = params, runs
        self.results = Results(metrics, runs, contrasts)
        self.source, self.floor = provenance(params, runs), floor_notes(params, metrics, runs)
        self.names = {dataset: data_name(params, dataset) for dataset in params.datasets()}

    def data(self, datasets: Sequence[str]) -> str:
        return f"{listed([self.names[dataset].name for dataset in datasets])}, our runs"

    def readings_note(self) -> str:
        known = [RULES.get(rule, rule) for rule in rules(self.params).values()]
        return READINGS_NOTE.format(rules=" or ".join(known), reported=reported_prediction(self.results))

    def table(
        self,
        name: str,
        title: str,
        caption: str,
        rows: list[Row],
        columns: list[Column],
        extra: Sequence[str] = (),
        first_head: str = "Method",
        spread: bool = True,
    ) -> Table:
        values = fill(self.results, rows, columns)
        flat = [value for line in values for value in line]
        readings = [row for row in rows if row.published == PROPOSED]
        conditional = {
            MARK_NOTE: any(value.mark for value in flat),
            UNMARKED_NOTE: any(value.mark for value in flat) and not all(row.ranked for row in rows),
            self.readings_note(): bool(readings and reported_prediction(self.results)),
            CALIMATCH_NOTE: any(row.key == CALIMATCH_TWIN for row in readings),
            STD_NOTE: spread and not all(row.pair for row in rows),
            GAIN_NOTE: any(row.pair for row in rows),
            MERGED_NOTE: any(value.merged for value in flat),
            INCOMPLETE_NOTE: any(value.incomplete for value in flat),
            **{note: any(column.metric == "ece" for column in columns) for note in self.floor},
        }
        notes = [*(note for note, holds in conditional.items() if holds), *extra]
        return Table(name, title, caption, self.source, rows, columns, values, self.names, notes, first_head, spread)
