"""A table as data: rows, columns, cells, marks; `catalogue` says which tables there are, `printing` prints them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd

from safeecgmatch.config import PROPOSED
from safeecgmatch.reporting.names import Name, data_name, higher_is_better, is_ranked, metric_name
from safeecgmatch.reporting.plot_data import LAST, LAST_FIVE, OWN_BEST
from safeecgmatch.reporting.provenance import branch_notes, diverged_notes, floor_notes, provenance, release_notes
from safeecgmatch.reporting.rows import CALIMATCH_TWIN, SUPERVISED, Row, rules
from safeecgmatch.reporting.statistics import marks
from safeecgmatch.reporting.study import TRAINING, Study, records
from safeecgmatch.reporting.twin import CALIMATCH, is_derived

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
MERGED_NOTE = "Where Supervised is printed once for all OOD levels, its runs are equal: it never sees the pool."
RULES = {"fitted": "fitted on validation", "learned": "learned by gradient"}
DERIVED_NOTE = (
    "CaliMatch was not trained: its rows are the time branch of SafeECGMatch with learned temperatures, which has the "
    "same weights at every epoch, at the best validation epoch of that branch."
)
GAIN_NOTE = (
    "A gain is a difference paired by seed and test record, with its 95 % interval from contrasts.csv; positive is "
    "better, in ECE as in ACC. It takes two seeds."
)
ENDINGS = {"posthoc": " (T)", LAST: " last", LAST_FIVE: " last 5", OWN_BEST: " own best"}
CSV = [
    "row", "label", "ood", "dataset", "metric", "scaling", "mean", "std", "interval_low", "interval_high", "seeds",
    "seeds_asked", "mark", "merged", "section",
]  # fmt: skip
COLUMN = ["dataset", "metric", "scaling"]


class Column(NamedTuple):
    dataset: str
    metric: str
    scaling: str = "none"

    @property
    def header(self) -> str:
        return metric_name(self.metric) + ENDINGS.get(self.scaling, "")


@dataclass(frozen=True)
class Table:
    """`cells` has a line for each row and column, row by row. CSV, LaTeX and Markdown all come from here."""

    name: str  # of its files, and of its label in LaTeX
    title: str
    caption: str
    source: str
    rows: list[Row]
    columns: list[Column]
    cells: pd.DataFrame
    data_names: dict[str, Name]
    notes: list[str] = field(default_factory=list)
    first_head: str = "Method"
    spread: bool = True  # print the standard deviation

    @property
    def number(self) -> str:
        """1 to 4 are the paper's."""
        return self.name.partition("_")[0].removeprefix("table")

    @property
    def show_ood(self) -> bool:
        """A level that all rows share is in the caption."""
        return len(levels_of(self.rows)) > 1

    def blocks(self) -> Iterator[tuple[Row, dict[int, list[Any]]]]:
        """Every row with its lines of `cells`, by OOD level."""
        cells = records(self.cells)
        for row in self.rows:
            yield row, {ood: [next(cells) for _ in self.columns] for ood in row.levels}

    def frame(self) -> pd.DataFrame:
        """Tidy, at full precision: one line per printed cell."""
        return self.cells[CSV]


def levels_of(rows: list[Row]) -> set[int]:
    return {ood for row in rows for ood in row.levels}


def fill(study: Study, rows: list[Row], columns: list[Column]) -> pd.DataFrame:
    """Cells of a table, marked within each OOD level and section; Supervised is merged whole or not at all."""
    cells = pd.DataFrame(
        [
            {
                **{"row": row.key, "label": row.label, "ood": ood, "section": row.section, "ranked": row.ranked},
                **{"published": row.published, "is_gain": row.is_gain, "mark": "", **column._asdict()},
                **study.printed(column.dataset, row.key, ood, column.metric, column.scaling)._asdict(),
            }
            for row in rows
            for ood in row.levels
            for column in columns
        ],
        columns=[*(name for name in CSV if name != "merged"), "ranked", "published", "is_gain"],
    )
    ranked = cells[cells["ranked"].astype(bool) & cells["metric"].map(is_ranked).astype(bool)]
    for (metric, *_), part in ranked.groupby(["metric", "dataset", "scaling", "ood", "section"]):
        cells.loc[part.index, "mark"] = marks(part["mean"].tolist(), higher_is_better(str(metric)))
    return cells.assign(merged=cells["row"].eq(SUPERVISED) & one_experiment(study, cells))


def one_experiment(study: Study, cells: pd.DataFrame) -> bool:
    """Whether Supervised has the same values for every seed at all OOD levels, in every column, and the same marks:
    different predictions would not agree in the last bit."""
    own = cells[cells["row"] == SUPERVISED]
    for (dataset, metric, scaling), levels in own.groupby(COLUMN):
        values = [study.seeds(str(dataset), SUPERVISED, ood, str(metric), str(scaling)) for ood in levels["ood"]]
        if not all(values) or any(found != values[0] for found in values) or levels["mark"].nunique() > 1:
            return False
    return own["ood"].nunique() > 1


def columns_for(datasets: Sequence[str], *measures: str | tuple[str, str]) -> list[Column]:
    """`measures`: metrics as trained, or each with its scaling."""
    pairs = [(measure, "none") if isinstance(measure, str) else measure for measure in measures]
    return [Column(dataset, *pair) for dataset in datasets for pair in pairs]


def listed(names: Sequence[str]) -> str:
    return " and ".join(names)


def our_runs(study: Study, datasets: Sequence[str]) -> str:
    return f"{listed([data_name(study.params, dataset).name for dataset in datasets])}, our runs"


def runs_of(study: Study, rows: list[Row], datasets: Sequence[str]) -> pd.DataFrame:
    """The lines of runs.csv behind a table."""
    names, runs = {name for row in rows for name in row.trainings}, study.runs
    return runs[runs["row"].isin(names) & runs["dataset"].isin(datasets) & runs["ood"].isin(levels_of(rows))]


def make_table(
    study: Study,
    name: str,
    title: str,
    caption: str,
    rows: list[Row],
    columns: list[Column],
    extra: Sequence[str] = (),
    first_head: str = "Method",
    spread: bool = True,
) -> Table:
    """A table with the notes that its values and rows ask for."""
    params, cells, datasets = study.params, fill(study, rows, columns), [column.dataset for column in columns]
    here, readings = runs_of(study, rows, datasets), [row for row in rows if row.published == PROPOSED]
    marked, gains = cells["mark"].ne("").any(), cells["is_gain"]
    known = " or ".join(RULES.get(rule, rule) for rule in rules(params).values())
    conditional = {
        MARK_NOTE: marked,
        UNMARKED_NOTE: marked and not cells["ranked"].all(),
        READINGS_NOTE.format(rules=known, reported=study.reported): bool(readings and study.reported),
        CALIMATCH_NOTE: any(row.key == CALIMATCH_TWIN for row in readings),
        STD_NOTE: spread and not gains.all(),
        GAIN_NOTE: gains.any(),
        MERGED_NOTE: cells["merged"].any(),
        INCOMPLETE_NOTE: cells["seeds"].between(0, cells["seeds_asked"], inclusive="neither").any(),
    }
    notes = [
        *(note for note, holds in conditional.items() if holds),
        *(floor_notes(study, datasets) if any(column.metric == "ece" for column in columns) else []),
        *extra,
        *([DERIVED_NOTE] if is_derived(params) and any(CALIMATCH in row.trainings for row in rows) else []),
        *release_notes(params, here),
        *(branch_notes(study, here) if any(column.scaling != TRAINING for column in columns) else []),
        *diverged_notes(here),
    ]
    names = {dataset: data_name(params, dataset) for dataset in params.datasets()}
    source = provenance(params, study.runs)
    return Table(name, title, caption, source, rows, columns, cells, names, notes, first_head, spread)
