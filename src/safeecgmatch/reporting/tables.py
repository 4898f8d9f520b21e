"""The paper's four tables and four more, as data; `render` prints them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.metrics import OPEN_SET
from safeecgmatch.reporting.names import (
    branch_name,
    dataset_name,
    in_table_order,
    method_name,
    metric_name,
    summary_methods,
    variant_name,
)
from safeecgmatch.reporting.provenance import provenance, release_notes
from safeecgmatch.reporting.results import THIRD, Entry, Results, Selection, marks, same_weight, weight_label

STD_NOTE = (
    "Mean ± sample standard deviation (ddof = 1) over the seeds; a dash is a missing cell. The CSV has full precision "
    "and 95 % t-intervals."
)
MARK_NOTE = (
    "Best results are bold and second-best underlined within each OOD setting, from unrounded means; ties share a mark."
)
INCOMPLETE_NOTE = "† Mean of fewer seeds than the grid asks for; the CSV gives their number."
SENSITIVITY_NOTE = (
    "No gradient passes between the branches, so the time branch is bit-identical for all values of lambda_sum; "
    "a difference can only come from the frequency branch, where lambda_sum acts through Adam's epsilon alone."
)
MERGED_NOTE = "Supervised never sees the pool; its cell is merged where the runs at all OOD levels are equal."
PAPER_WEIGHTS = (THIRD, 1.0, 3.0)
MERGEABLE = "supervised"


@dataclass(frozen=True)
class Row:
    """One printed line; consecutive rows with the same `key` form a block."""

    key: str
    label: str
    selection: Selection
    venue: str = ""
    cite: str = ""


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
    """`entries[i][j]` is row i, column j. The frame, the LaTeX and the Markdown all come from here."""

    name: str
    caption: str
    rows: list[Row]
    columns: list[Column]
    entries: list[list[Entry]]
    template: str
    notes: list[str] = field(default_factory=list)

    def frame(self) -> pd.DataFrame:
        """Tidy, at full precision: one line per printed cell."""
        lines: list[dict[str, Any]] = []
        for row, entries in zip(self.rows, self.entries, strict=True):
            for column, entry in zip(self.columns, entries, strict=True):
                low, high = entry.interval
                lines.append(
                    {
                        "row": row.key,
                        "label": row.label,
                        "ood": row.selection.ood,
                        "dataset": column.dataset,
                        "metric": column.metric,
                        "scaling": column.scaling,
                        "mean": entry.summary.mean if entry.summary else None,
                        "std": entry.summary.std if entry.summary else None,
                        "interval_low": low,
                        "interval_high": high,
                        "seeds": entry.summary.seeds if entry.summary else 0,
                        "seeds_asked": entry.expected,
                        "mark": entry.mark,
                        "merged": entry.merged,
                    }
                )
        return pd.DataFrame(lines)


def fill(results: Results, rows: list[Row], columns: list[Column], marked: bool) -> list[list[Entry]]:
    """Entries of a table, marked within each OOD level and merged over the levels where they are one experiment."""
    entries = [
        [results.entry(column.dataset, row.selection, column.metric, column.scaling) for column in columns]
        for row in rows
    ]
    if marked:
        for ood in {row.selection.ood for row in rows}:
            members = [i for i, row in enumerate(rows) if row.selection.ood == ood]
            for j, column in enumerate(columns):
                for i, mark in zip(members, marks([entries[i][j] for i in members], column.metric), strict=True):
                    entries[i][j] = replace(entries[i][j], mark=mark)
    block = [i for i, row in enumerate(rows) if row.key == MERGEABLE]
    for j, column in enumerate(columns):
        if len(block) > 1 and _one_experiment(results, [rows[i].selection for i in block], column.dataset):
            same = len({entries[i][j].mark for i in block}) == 1
            for i in block:
                entries[i][j] = replace(entries[i][j], merged=same)
    return entries


def _one_experiment(results: Results, selections: list[Selection], dataset: str) -> bool:
    """Equal likelihood for every seed: different predictions would not agree in the last bit."""
    first, *others = (results.by_seed(dataset, selection, "nll") for selection in selections)
    return bool(first) and all(other == first for other in others)


def method_rows(params: Params, methods: list[str]) -> list[Row]:
    rows = []
    for method in methods:
        name = method_name(method)
        weight = params.lambda_sum if method == PROPOSED else None
        for ood in params.grid.ood_levels:
            rows.append(Row(method, name.name, Selection(method, ood, lambda_sum=weight), name.venue, name.cite))
    return rows


def columns_for(datasets: Sequence[str], *metrics: str, scaling: str = "none") -> list[Column]:
    return [Column(dataset, metric, scaling) for dataset in datasets for metric in metrics]


def dataset_list(datasets: Sequence[str]) -> str:
    return " and ".join(dataset_name(dataset).name for dataset in datasets)


def build_tables(params: Params, metrics: pd.DataFrame, runs: pd.DataFrame) -> list[Table]:
    """Tables 1 to 4 in the paper's order, then further metrics, open set, post-hoc scaling and branches."""
    results = Results(metrics, params.grid.seeds)
    source, notes = provenance(params, runs), release_notes(params, runs)
    datasets = params.grid.datasets
    methods = in_table_order([*params.grid.methods, PROPOSED])
    paper = ("acc", "ece", "ace", "sce")

    def table(
        name: str,
        caption: str,
        rows: list[Row],
        columns: list[Column],
        template: str,
        extra: list[str],
        marked: bool = True,
    ) -> Table:
        entries = fill(results, rows, columns, marked)
        listed = [*([MARK_NOTE] if marked else []), STD_NOTE, *extra]
        if any(entry.merged for line in entries for entry in line):
            listed.append(MERGED_NOTE)
        if any(entry.incomplete for line in entries for entry in line):
            listed.append(INCOMPLETE_NOTE)
        return Table(name, f"{caption} {source}", rows, columns, entries, template, listed)

    ablation, sensitivity = params.ablation, params.sensitivity
    ablation_rows = [
        Row(variant, variant_name(variant), Selection(PROPOSED, ood, variant, 1.0))
        for ood in ablation.ood_levels
        for variant in ["full", *ablation.variants]
    ]
    weights: list[float] = []
    for weight in (*PAPER_WEIGHTS, *sensitivity.lambda_sums, params.lambda_sum):
        if not any(same_weight(weight, known) for known in weights):
            weights.append(weight)
    sensitivity_rows = [
        Row(weight_label(weight), f"λ_sum = {weight_label(weight)}", Selection(PROPOSED, ood, "full", weight))
        for ood in sensitivity.ood_levels
        for weight in sorted(weights)
    ]
    levels = " and ".join(f"{ood} %" for ood in ablation.ood_levels)
    weight_levels = " and ".join(f"{ood} %" for ood in sensitivity.ood_levels)
    return [
        table(
            "table1_summary",
            f"Summary of benchmark results on {dataset_list(datasets)}, our runs.",
            method_rows(params, summary_methods(methods)),
            columns_for(datasets, "acc", "ece"),
            "summary",
            notes,
        ),
        table(
            "table2_ablation",
            f"Ablation study at {levels} OOD on {dataset_list(ablation.datasets)}, lambda_sum = 1, our runs.",
            ablation_rows,
            columns_for(ablation.datasets, "acc", "ece"),
            "ablation",
            [],
        ),
        table(
            "table3_benchmark",
            f"Main benchmark results on {dataset_list(datasets)}, our runs. "
            "Lower ECE, ACE and SCE represent better calibration.",
            method_rows(params, methods),
            columns_for(datasets, *paper),
            "benchmark",
            notes,
        ),
        table(
            "table4_sensitivity",
            f"Sensitivity analysis of lambda_sum on {dataset_list(sensitivity.datasets)} with {weight_levels} OOD, "
            "our runs.",
            sensitivity_rows,
            columns_for(sensitivity.datasets, *paper),
            "sensitivity",
            [SENSITIVITY_NOTE],
        ),
        table(
            "table5_further_metrics",
            "Further metrics on the test set, our runs.",
            method_rows(params, methods),
            columns_for(datasets, "balanced_accuracy", "macro_f1", "nll", "brier"),
            "benchmark",
            notes,
        ),
        table(
            "table6_open_set",
            "Seen against unseen classes on the open test set, by the method's own score, else 1 - max probability; "
            "FPR95 is the share of seen records flagged where 95 % of the unseen ones are; our runs.",
            method_rows(params, methods),
            columns_for(datasets, *OPEN_SET),
            "benchmark",
            notes,
        ),
        table(
            "table7_posthoc",
            "Calibration after post-hoc temperature scaling, marked (T): every method gets one temperature in "
            "[0.2, 5], fitted on validation; our runs. Accuracy is that of Table 3.",
            method_rows(params, methods),
            columns_for(datasets, "ece", "ace", "sce", "nll", scaling="posthoc"),
            "benchmark",
            notes,
        ),
        table(
            "table8_branches",
            "Predictions of the branches of the two-branch methods, our runs.",
            branch_rows(params, results, methods),
            columns_for(datasets, *paper, "auroc"),
            "benchmark",
            notes,
            marked=False,
        ),
    ]


def branch_rows(params: Params, results: Results, methods: list[str]) -> list[Row]:
    rows = []
    for method in methods:
        branches = results.branches.get(method, [])
        if len(branches) < 2:
            continue
        for branch in branches:
            label = f"{method_name(method).name}, {branch_name(branch)}"
            for row in method_rows(params, [method]):
                rows.append(Row(f"{method}.{branch}", label, replace(row.selection, branch=branch)))
    return rows
