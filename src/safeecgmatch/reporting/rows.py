"""Which runs stand in which row of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.reporting.names import branch_name, in_table_order, is_paper_variant, method_name, variant_name
from safeecgmatch.reporting.results import THIRD, Results, RunsOf, same_weight, weight_label

MERGEABLE = "supervised"
PAPER_WEIGHTS = (THIRD, 1.0, 3.0)
NOT_IN_THE_PAPER = "not in the paper"


@dataclass(frozen=True)
class Row:
    """One printed line; consecutive rows with the same `key` form a block, a new `section` is announced by a rule."""

    key: str
    label: str
    runs: RunsOf
    venue: str = ""
    cite: str = ""
    section: str = ""
    ranked: bool = True


def methods(params: Params) -> list[str]:
    return in_table_order([*params.grid.methods, PROPOSED])


def main_runs(params: Params, method: str, ood: int) -> RunsOf:
    return RunsOf(method, ood, lambda_sum=params.lambda_sum if method == PROPOSED else None)


def method_rows(params: Params, chosen: list[str], results: Results) -> list[Row]:
    """A block per method; where SafeECGMatch reports another branch, its time branch is a second reading below it."""
    rows = []
    for method in chosen:
        name = method_name(method)
        block = [
            Row(method, name.name, main_runs(params, method, ood), name.venue, name.cite)
            for ood in params.grid.ood_levels
        ]
        rows += block
        if method == PROPOSED and results.reported_branch() != "time":
            rows += [
                Row(f"{method}.time", f"{name.name}, time branch", replace(row.runs, branch="time"), ranked=False)
                for row in block
            ]
    return rows


def variant_rows(params: Params, variants: Sequence[str]) -> list[Row]:
    weight = params.ablation.lambda_sum
    return [
        Row(
            variant,
            variant_name(variant),
            RunsOf(PROPOSED, ood, variant, weight),
            section="" if is_paper_variant(variant) else NOT_IN_THE_PAPER,
            ranked=is_paper_variant(variant),
        )
        for variant in variants
        for ood in params.ablation.ood_levels
    ]


def ablation_rows(params: Params) -> list[Row]:
    """The paper's rows, then those that the paper does not have."""
    variants = ["full", *params.ablation.variants]
    return variant_rows(params, sorted(variants, key=lambda variant: not is_paper_variant(variant)))


def sensitivity_rows(params: Params) -> list[Row]:
    weights: list[float] = []
    for weight in (*PAPER_WEIGHTS, *params.sensitivity.lambda_sums, params.lambda_sum):
        if not any(same_weight(weight, known) for known in weights):
            weights.append(weight)
    return [
        Row(
            weight_label(weight),
            f"λ_sum = {weight_label(weight)}" + ("" if weight else " (time branch alone)"),
            RunsOf(PROPOSED, ood, "full", weight),
        )
        for weight in sorted(weights)
        for ood in params.sensitivity.ood_levels
    ]


def branch_rows(params: Params, results: Results, chosen: list[str]) -> list[Row]:
    rows = []
    for method in chosen:
        branches = results.branches.get(method, [])
        for branch in branches if len(branches) > 1 else []:
            label = f"{method_name(method).name}, {branch_name(branch)}"
            for ood in params.grid.ood_levels:
                runs = replace(main_runs(params, method, ood), branch=branch)
                rows.append(Row(f"{method}.{branch}", label, runs, ranked=False))
    return rows


def training_rows(params: Params, chosen: list[str]) -> list[Row]:
    """Every method, then the variants of SafeECGMatch."""
    rows = [
        Row(method, method_name(method).name, main_runs(params, method, ood), ranked=False)
        for method in chosen
        for ood in params.grid.ood_levels
    ]
    variants = variant_rows(params, params.ablation.variants)
    return rows + [replace(row, section="variants of SafeECGMatch", ranked=False) for row in variants]
