"""What the paper's own numbers say about its claims: findings that need no training, all from published.yaml."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import product

import numpy as np

from safeecgmatch.config import PROPOSED
from safeecgmatch.reporting.claims import load_claims
from safeecgmatch.reporting.names import (
    dataset_name,
    direction,
    higher_is_better,
    method_name,
    metric_name,
    setting_name,
)
from safeecgmatch.reporting.published import ROUNDING, PublishedCell, published, published_labels
from safeecgmatch.reporting.statistics import TIE, Summary, marks, welch_p

RIVAL = "calimatch"
SETTINGS = tuple(product(("ptbxl", "cinc21"), (30, 60)))
METRICS = ("acc", "ece", "ace", "sce")
ABLATION_ROWS = {"no_freq_cal": RIVAL, "no_cal": "openmatch"}

Column = dict[str, PublishedCell]  # by row


@dataclass(frozen=True)
class Finding:
    """One finding in one sentence, the numbers behind it, and whether the claim that it decides holds."""

    title: str
    text: str
    evidence: list[str] = field(default_factory=list)
    holds: bool | None = None


def column(table: str, dataset: str, ood: int, metric: str) -> Column:
    return {row: c for (d, row, o, m), c in published(table).items() if (d, o, m) == (dataset, ood, metric)}


def column_name(dataset: str, ood: int, metric: str) -> str:
    return f"{setting_name(dataset, ood)} {metric_name(metric)}"


def columns(table: str) -> Iterator[tuple[str, str, Column]]:
    """Name, metric and cells of every column."""
    for (dataset, ood), metric in product(SETTINGS, dict.fromkeys(metric for *_, metric in published(table))):
        yield column_name(dataset, ood, metric), metric, column(table, dataset, ood, metric)


def better(cells: Column, row: str, metric: str) -> list[str]:
    """The rows with a better printed mean than `row`."""
    return [name for name, cell in cells.items() if direction(metric) * (cell.mean - cells[row].mean) > TIE]


def printed_top_two(cells: Column, metric: str) -> float:
    """p of "non-inferior to all rows but one" if the runs had the printed spreads: Welch, unpaired."""
    sign, new = direction(metric), cells[PROPOSED].summary
    rivals = [cell.summary for row, cell in cells.items() if row != PROPOSED]
    allowed = new._replace(mean=new.mean + sign * load_claims().margin)
    found = [welch_p(allowed, old) if sign * (allowed.mean - old.mean) > 0 else 1.0 for old in rivals]
    return sorted(found)[-2]


def table3_top_two() -> Finding:
    places, chances = [], []
    for name, metric, cells in columns("benchmark"):
        places.append(1 + len(better(cells, PROPOSED, metric)))
        if metric in ("acc", "ece"):
            chances.append((printed_top_two(cells, metric), name))
    sure = sum(p <= 0.05 for p, _ in chances)
    return Finding(
        "Best or second-best in Table 3",
        f"The printed means put SafeECGMatch first or second in {sum(place <= 2 for place in places)} of {len(places)} "
        "columns of Table 3; with the printed spread of three seeds it is surely non-inferior (by 0.01, unpaired) to "
        f"all rows but one in {sure} of {len(chances)} columns of ACC and ECE.",
        [f"{name}: p = {p:.3f}" for p, name in chances],
        holds=max(places) <= 2,
    )


def mixed_baselines() -> Finding:
    cells = {metric: column("benchmark", "ptbxl", 60, metric) for metric in ("acc", "ece")}
    source = {metric: _second_best(cells[metric], metric) for metric in cells}
    numbers = [
        f"{method_name(row).name}: ACC {cells['acc'][row].mean:.3f}, ECE {cells['ece'][row].mean:.3f}"
        for row in (source["acc"], source["ece"], PROPOSED)
    ]
    return Finding(
        "One sentence, two baselines",
        f"On PTB-XL 60 % the text improves ACC upon {method_name(source['acc']).name} and ECE upon "
        f"{method_name(source['ece']).name}; no single method has both numbers.",
        numbers,
    )


def _second_best(cells: Column, metric: str) -> str:
    return max((row for row in cells if row != PROPOSED), key=lambda row: direction(metric) * cells[row].mean)


def cinc60_best_rival() -> Finding:
    cells = column("benchmark", "cinc21", 60, "acc")
    ahead = better(cells, PROPOSED, "acc")
    named = next(row for row, cell in cells.items() if abs(cell.mean - 0.7617) <= ROUNDING)
    between = [row for row in better(cells, named, "acc") if row != PROPOSED]
    best = max(ahead, key=lambda row: cells[row].mean)
    return Finding(
        "The rival in the text is not the best one",
        f"On CinC21 60 % the text improves ACC from 0.7617 to 0.7803, but 0.7617 is {method_name(named).name}, and in "
        f"Table 3 {method_name(best).name} has {cells[best].mean:.3f}, more than SafeECGMatch's "
        f"{cells[PROPOSED].mean:.3f}.",
        [f"{method_name(row).name}: ACC {cells[row].mean:.3f}" for row in (named, *between, PROPOSED)],
        holds=not ahead,
    )


def smallest_p(new: PublishedCell, old: PublishedCell, sign: int) -> float:
    """Welch's p with every rounding used for the gain: the means apart, each std where p is smallest."""
    means = (new.mean + sign * ROUNDING, old.mean - sign * ROUNDING)
    spreads = [np.linspace(cell.summary.std - ROUNDING, cell.summary.std + ROUNDING, 11) for cell in (new, old)]
    return min(
        welch_p(Summary(means[0], first, new.seeds), Summary(means[1], second, old.seeds))
        for first, second in product(*spreads)
    )


def gain_over_calimatch() -> Finding:
    lines, plain, generous = [], [], []
    for name, metric, cells in columns("benchmark"):
        new, old = cells[PROPOSED], cells[RIVAL]
        plain.append(welch_p(new.summary, old.summary))
        generous.append(smallest_p(new, old, direction(metric)))
        lines.append(f"{name}: {new.mean - old.mean:+.3f}, p = {plain[-1]:.2f} ({generous[-1]:.2f})")
    return Finding(
        "The gain over CaliMatch",
        f"The gain of SafeECGMatch over CaliMatch is significant (Welch, p < 0.05) in {sum(p < 0.05 for p in plain)} "
        f"of {len(plain)} columns of Table 3; the smallest p is {min(plain):.2f}, and {min(generous):.2f} if every "
        "rounding is used in its favour.",
        lines,
    )


def ablation_rows() -> Finding:
    table, same, spreads, lines = published("ablation"), 0, 0, []
    for (dataset, row, ood, metric), cell in table.items():
        other = published("benchmark")[dataset, ABLATION_ROWS.get(row, PROPOSED), ood, metric]
        # Printed sample and population std must have a common true value: sd sqrt(2/3), each rounded.
        low, high = ((other.std + step) * (2 / 3) ** 0.5 for step in (-ROUNDING, ROUNDING))
        spreads += low - ROUNDING <= cell.std <= high + ROUNDING
        if row in ABLATION_ROWS:
            same += abs(cell.mean - other.mean) <= TIE
            lines.append(
                f"{column_name(dataset, ood, metric)}, {row}: {cell.mean:.3f}, {method_name(other.row).name} in "
                f"Table 3: {other.mean:.3f}; std {cell.std:.3f} and {other.std:.3f}"
            )
    return Finding(
        "The ablation is not one",
        f"The ablated rows of Table 2 are the CaliMatch and OpenMatch rows of Table 3 in {same} of {len(lines)} means, "
        f"with population instead of sample standard deviations ({spreads} of {len(table)} cells agree); no run of "
        "SafeECGMatch without a calibration is in the paper.",
        lines,
    )


def wrong_marks() -> Finding:
    lines = []
    for table, number in (("summary", 1), ("benchmark", 3)):
        for name, metric, cells in columns(table):
            right = marks([cell.mean for cell in cells.values()], higher_is_better(metric), ("bold", "underline"))
            lines += [
                f"Table {number}, {name}, {method_name(row).name} {cell.mean:.3f}: {cell.mark or 'no mark'}, should "
                f"have {mark or 'none'}"
                for (row, cell), mark in zip(cells.items(), right, strict=True)
                if mark != cell.mark
            ]
    return Finding(
        "Marks of best and second-best",
        f"{len(lines)} cells of Tables 1 and 3 are marked wrongly.",
        lines,
    )


def one_program() -> Finding:
    pairs = {name: (cells["tstfc"].mean, cells["complematch"].mean) for name, _, cells in columns("benchmark")}
    differ = sum(abs(first - second) > TIE for first, second in pairs.values())
    return Finding(
        "TS-TFC and CompleMatch",
        f"The rows of TS-TFC and CompleMatch differ in {differ} of {len(pairs)} columns of Table 3, but in the "
        "published code CompleMatch is an empty subclass of TS-TFC and neither leaves its warm-up: the two rows can "
        "differ by noise alone.",
        [f"{name}: TS-TFC {first:.3f}, CompleMatch {second:.3f}" for name, (first, second) in pairs.items()],
    )


def validation_labels() -> Finding:
    known = published_labels()
    ratios = [labels["validation"] / labels["training"] for labels in known.values()]
    lines = [
        f"{dataset_name(name).name}: {labels['training']:,} training labels, {labels['validation']:,} validation labels"
        for name, labels in known.items()
    ]
    return Finding(
        "Labels that are not counted",
        f"Validation labels, which select the checkpoint and fit the calibration, outnumber the training labels "
        f"{min(ratios):.0f} to {max(ratios):.0f} times ({'; '.join(lines)}).",
        lines,
    )


def lambda_choice() -> Finding:
    table, lines, best = published("sensitivity"), [], []
    spread = 0.0
    for metric in METRICS:
        cells = {row: cell for (_, row, _, m), cell in table.items() if m == metric}
        ranked = sorted(cells, key=lambda row: cells[row].mean, reverse=higher_is_better(metric))
        best += [metric_name(metric)] if abs(cells[ranked[0]].mean - cells["1"].mean) <= TIE else []
        worst_p = min(welch_p(cells[a].summary, cells[b].summary) for a in cells for b in cells if a < b)
        spread = max(spread, abs(cells[ranked[0]].mean - cells[ranked[-1]].mean))
        lines.append(f"{metric_name(metric)}: best at lambda_sum = {ranked[0]}; smallest p of a pair {worst_p:.2f}")
    return Finding(
        "lambda_sum",
        f"The rows of Table 4 differ by at most {spread:.3f}; the default of 1 is best in "
        f"{' and '.join(best) or 'no metric'} only. Adam cancels a factor of the loss up to its epsilon, so noise is "
        "all that these rows can show.",
        lines,
    )


AUDITS: dict[str, Callable[[], Finding]] = {
    audit.__name__: cache(audit)
    for audit in (
        gain_over_calimatch, ablation_rows, wrong_marks, one_program, validation_labels, table3_top_two,
        mixed_baselines, cinc60_best_rival, lambda_choice,
    )
}  # fmt: skip


def audit_findings() -> list[Finding]:
    return [audit() for audit in AUDITS.values()]
