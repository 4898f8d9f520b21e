"""The paper's four tables and five more, as data; `render` prints them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from safeecgmatch.config import Params
from safeecgmatch.metrics import OPEN_SET, REFUSED
from safeecgmatch.reporting import rows as rows_of
from safeecgmatch.reporting.names import Name, data_name, is_ranked, metric_name, summary_methods
from safeecgmatch.reporting.provenance import (
    accepted_as_unseen,
    branch_notes,
    diverged_notes,
    floor_notes,
    provenance,
    release_notes,
    score_notes,
    warning_notes,
)
from safeecgmatch.reporting.results import Results, SeedMean, marks, weight_label
from safeecgmatch.reporting.rows import MERGEABLE, Row

STD_NOTE = (
    "Mean ± sample standard deviation (ddof = 1) over the seeds; a dash is a missing cell. The CSV has full precision "
    "and 95 % t-intervals."
)
MARK_NOTE = (
    "Best results are bold and second-best underlined within each OOD setting, from unrounded means; ties share a mark."
)
UNMARKED_NOTE = "Rows that are not in the paper, and second readings of the same runs, are not ranked."
INCOMPLETE_NOTE = "† Mean of fewer seeds than the grid asks for; the CSV gives their number."
MERGED_NOTE = "Supervised never sees the pool: its runs at all OOD levels are equal, and printed once."
SENSITIVITY_NOTE = (
    "No gradient passes between the branches, so after equally many iterations the time branch has the same bits for "
    "every lambda_sum, and the frequency branch feels a factor through Adam's epsilon alone. What lambda_sum does "
    "change is which checkpoint is chosen; the differences between its values are a noise floor."
)
EQUAL_NOTE = (
    "Equal by construction: {}. The time branch is reported and selects the checkpoint, and nothing of the frequency "
    "branch reaches it."
)
PAPER_METRICS = ("acc", "ece", "ace", "sce")


@dataclass(frozen=True)
class Column:
    dataset: str
    metric: str
    scaling: str = "none"

    @property
    def header(self) -> str:
        return metric_name(self.metric) + (" (T)" if self.scaling == "posthoc" else "")


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


def fill(results: Results, rows: list[Row], columns: list[Column]) -> list[list[SeedMean]]:
    """Values of a table, marked within each OOD level; the mergeable row is merged whole or not at all."""
    values = [
        [results.value(column.dataset, row.runs, column.metric, column.scaling) for column in columns] for row in rows
    ]
    for ood in {row.runs.ood for row in rows}:
        members = [i for i, row in enumerate(rows) if row.runs.ood == ood and row.ranked]
        for j, column in enumerate(columns):
            if is_ranked(column.metric):
                for i, mark in zip(members, marks([values[i][j] for i in members], column.metric), strict=True):
                    values[i][j] = replace(values[i][j], mark=mark)
    block = [i for i, row in enumerate(rows) if row.key == MERGEABLE]
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


def equal_rows_note(results: Results, rows: list[Row], dataset: str) -> list[str]:
    """Rows of one training under several names: said where the numbers agree to the last bit and the code says why."""
    if results.reported_branch() != "time":
        return []
    groups: dict[tuple, list[str]] = {}
    for row in rows:
        by_seed = results.by_seed(dataset, row.runs, "nll")
        if by_seed:
            groups.setdefault((row.runs.ood, *by_seed.items()), []).append(row.label)
    equal = [", ".join(labels) for labels in groups.values() if len(labels) > 1]
    return [EQUAL_NOTE.format("; ".join(equal))] if equal else []


def columns_for(datasets: Sequence[str], *metrics: str, scaling: str = "none") -> list[Column]:
    return [Column(dataset, metric, scaling) for dataset in datasets for metric in metrics]


def build_tables(params: Params, metrics: pd.DataFrame, runs: pd.DataFrame) -> list[Table]:
    """Tables 1 to 4 in the paper's order, then further metrics, open set, post-hoc scaling, branches, training."""
    results = Results(metrics, runs)
    source, floor = provenance(params, runs), floor_notes(params, metrics, runs)
    notes = [*release_notes(params, runs), *branch_notes(params, runs, results), *diverged_notes(runs)]
    datasets = params.grid.datasets
    used: set[str] = {*datasets, *params.ablation.datasets, *params.sensitivity.datasets}
    names = {dataset: data_name(params, dataset) for dataset in used}
    methods = rows_of.methods(params)
    all_rows = rows_of.method_rows(params, methods, results)

    def listed(members: Sequence[str]) -> str:
        return " and ".join(names[dataset].name for dataset in members)

    def levels(members: Sequence[int]) -> str:
        return " and ".join(f"{ood} %" for ood in members)

    def table(
        name: str,
        title: str,
        caption: str,
        rows: list[Row],
        columns: list[Column],
        extra: list[str],
        first_head: str = "Method",
    ) -> Table:
        values = fill(results, rows, columns)
        flat = [value for line in values for value in line]
        conditional = {
            MARK_NOTE: any(value.mark for value in flat),
            UNMARKED_NOTE: any(value.mark for value in flat) and not all(row.ranked for row in rows),
            STD_NOTE: True,
            MERGED_NOTE: any(value.merged for value in flat),
            INCOMPLETE_NOTE: any(value.incomplete for value in flat),
            **{note: any(column.metric == "ece" for column in columns) for note in floor},
        }
        found = [note for note, holds in conditional.items() if holds] + extra
        return Table(name, title, caption, source, rows, columns, values, names, found, first_head)

    ablation, sensitivity = params.ablation, params.sensitivity
    ablation_rows, weight_rows = rows_of.ablation_rows(params), rows_of.sensitivity_rows(params)
    shown = f"{listed(datasets)}, our runs"
    return [
        table(
            "table1_summary",
            "Table 1: summary",
            f"Summary of benchmark results on {shown}.",
            rows_of.method_rows(params, summary_methods(methods), results),
            columns_for(datasets, "acc", "ece"),
            notes,
        ),
        table(
            "table2_ablation",
            "Table 2: ablation",
            f"Ablation study at {levels(ablation.ood_levels)} OOD on {listed(ablation.datasets)}, "
            f"lambda_sum = {weight_label(ablation.lambda_sum)}, our runs.",
            ablation_rows,
            columns_for(ablation.datasets, "acc", "ece"),
            [note for dataset in ablation.datasets[:1] for note in equal_rows_note(results, ablation_rows, dataset)]
            + diverged_notes(runs[runs["stage"].str.startswith("train_ablation@")]),
        ),
        table(
            "table3_benchmark",
            "Table 3: full benchmark",
            f"Main benchmark results on {shown}. Lower ECE, ACE and SCE represent better calibration.",
            all_rows,
            columns_for(datasets, *PAPER_METRICS),
            notes,
        ),
        table(
            "table4_sensitivity",
            "Table 4: sensitivity to lambda_sum",
            f"Sensitivity analysis of lambda_sum on {listed(sensitivity.datasets)} with "
            f"{levels(sensitivity.ood_levels)} OOD, our runs.",
            weight_rows,
            columns_for(sensitivity.datasets, *PAPER_METRICS),
            [SENSITIVITY_NOTE]
            + [note for dataset in sensitivity.datasets[:1] for note in equal_rows_note(results, weight_rows, dataset)],
            first_head="λ_sum",
        ),
        table(
            "table5_further_metrics",
            "Table 5: further metrics",
            f"Further metrics on the test set of {shown}.",
            all_rows,
            columns_for(datasets, "balanced_accuracy", "macro_f1", "nll", "brier"),
            notes,
        ),
        table(
            "table6_open_set",
            "Table 6: unseen classes",
            f"Seen against unseen classes on the open test set of {shown}, by the method's unseen-class score. FPR95: "
            "share of seen records flagged where 95 % of the unseen ones are. AURC: area under the risk-coverage "
            "curve, the mean share of wrong answers over all shares of refused records; an answer for an unseen "
            "class is always wrong.",
            all_rows,
            columns_for(datasets, *OPEN_SET, "aurc"),
            [*score_notes(runs, methods), *notes],
        ),
        table(
            "table6b_refusal",
            "Table 6b: accuracy with refusals",
            f"Accuracy on the open test set of {shown}, when the 0 to 50 % least certain records, by the score of "
            "Table 6, are refused; an answer for an unseen class is always wrong.",
            all_rows,
            columns_for(datasets, *(f"acc_refusing_{share}" for share in REFUSED)),
            notes,
        ),
        table(
            "table7_posthoc",
            "Table 7: after post-hoc temperature scaling",
            f"Calibration on {shown}, after post-hoc temperature scaling, marked (T): every method gets one "
            "temperature in [0.2, 5], fitted on validation. Accuracy is that of Table 3.",
            all_rows,
            columns_for(datasets, "ece", "ace", "sce", "nll", scaling="posthoc"),
            notes,
        ),
        table(
            "table8_branches",
            "Table 8: branch by branch",
            f"Predictions of the branches of the two-branch methods on {shown}.",
            rows_of.branch_rows(params, results, methods),
            columns_for(datasets, *PAPER_METRICS, "auroc"),
            notes,
        ),
        table(
            "table9_training",
            "Table 9: what was accepted",
            f"Trainings on {shown}. Accepted: share of the offered pool records that got a pseudo-label, over the "
            "whole run; Unseen: share of unseen classes among them, to be compared with the pool's share, the OOD "
            "level; T: last temperatures of the first (or only) and the second branch; Teacher: its last validation "
            "accuracy. A dash: the method has no such thing.",
            rows_of.training_rows(params, methods),
            columns_for(
                datasets,
                *("accepted", "accepted_unseen", "accepted_second"),
                *("t_class", "t_ova", "t_class_second", "t_ova_second", "teacher_accuracy"),
                scaling="training",
            ),
            [*accepted_as_unseen(params), *warning_notes(runs), *diverged_notes(runs)],
        ),
    ]
