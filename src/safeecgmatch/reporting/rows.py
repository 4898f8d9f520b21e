"""Which runs stand in which row of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from safeecgmatch.cells import ARM_OOD, lambda_row, weight_label
from safeecgmatch.config import PROPOSED, Arm, Params
from safeecgmatch.reporting.contrasts import placebo
from safeecgmatch.reporting.names import branch_name, in_table_order, is_paper_variant, method_name, variant_name
from safeecgmatch.reporting.plot_data import READ
from safeecgmatch.reporting.results import REPORTED, Results, RunsOf
from safeecgmatch.reporting.twin import CALIMATCH, LEARNED_T, fitted, is_derived

SUPERVISED, LEARNED = "supervised", "learned"
PAPER_WEIGHTS = (1 / 3, 1.0, 3.0)
NOT_IN_THE_PAPER = "not in the paper"
LEARNED_SECTION = "temperatures learned"
NOT_RUN = "not run"  # a row that no cell has
ARM_NAMES = {"seen_pool": "filtered pool", "val150": "150 validation labels"}
RULE_EFFECT = "temperature rule"
BRANCH_EFFECT = "frequency branch"
PLACEBO = "placebo, two branches of the same kind"
CALIMATCH_TWIN = f"{PROPOSED}-{LEARNED_T}@time"


@dataclass(frozen=True)
class Row:
    """One printed line; consecutive rows with the same `key` form a block, a new `section` is announced by a rule.

    `pair`: its values are the paired gains of the first row of contrasts.csv over the second.
    """

    key: str
    label: str
    runs: RunsOf
    venue: str = ""
    cite: str = ""
    section: str = ""
    ranked: bool = True
    published: str = ""  # the row of the paper's table
    pair: tuple[str, str] | None = None


@dataclass(frozen=True)
class Entry:
    """A method, or one reading of SafeECGMatch: what gets a row in Tables 1 and 3, and its place in the figures."""

    method: str
    row: str
    branch: str
    label: str

    @property
    def key(self) -> str:
        """As contrasts.csv and plots/ name it."""
        return f"{self.row}@{self.branch}" if self.branch else self.row

    def runs(self, ood: int) -> RunsOf:
        return RunsOf(self.row, ood, self.branch)


def methods(params: Params) -> list[str]:
    return in_table_order([*params.grid.methods, *([CALIMATCH] if is_derived(params) else []), PROPOSED])


def rules(params: Params) -> dict[str, str]:
    """The rows of SafeECGMatch that are readings of one method, and by which rule each gets its temperatures."""
    if not fitted(params):  # `learned_t` is the main run under another name
        return {PROPOSED: LEARNED}
    others = {f"{PROPOSED}-{name}": LEARNED if name == LEARNED_T else variant_name(name) for name in params.readings}
    return {PROPOSED: "fitted", **others}


def entries(params: Params) -> list[Entry]:
    """Every method in the order of Table 3, SafeECGMatch under each of its readings."""
    found = []
    for method in methods(params):
        name = method_name(method).name
        if method != PROPOSED:
            found.append(Entry(method, method, REPORTED, name))
            continue
        for row, rule in rules(params).items():
            both = row != PROPOSED or params.lambda_sum > 0
            found += [
                Entry(PROPOSED, row, branch, f"{name} ({rule}, {branch})") for branch in (READ if both else READ[1:])
            ]
    return found


def trainings(params: Params) -> dict[str, str]:
    """The rows that Table 3 rests on, with their labels: SafeECGMatch once for each temperature rule."""
    labels = {method: method_name(method).name for method in methods(params) if method != PROPOSED}
    return labels | {row: f"{method_name(PROPOSED).name} ({rule})" for row, rule in rules(params).items()}


def method_rows(params: Params, chosen: Sequence[str]) -> list[Row]:
    """A block per method and reading; all are ranked."""
    rows: list[Row] = []
    for entry in entries(params):
        if entry.method in chosen:
            name = method_name(entry.method)
            first = entry.method != PROPOSED or not any(row.published == PROPOSED for row in rows)
            rows += [
                Row(
                    entry.key,
                    entry.label,
                    entry.runs(ood),
                    "" if entry.method == PROPOSED else name.venue,
                    name.cite if first else "",
                    published=entry.method,
                )
                for ood in params.grid.ood_levels
            ]
    return sorted(rows, key=lambda row: chosen.index(row.published))


def full_row(params: Params) -> str:
    """The main run, where it has the weight of the ablation."""
    return PROPOSED if params.lambda_sum == params.ablation.lambda_sum else NOT_RUN


def ablation_rows(params: Params) -> list[Row]:
    """The paper's rows, the same under learned temperatures, then those that the paper does not have."""
    asked: list[str] = list(dict.fromkeys([*params.ablation.variants, *params.variants.names, *params.readings]))
    levels = sorted({*params.ablation.ood_levels, *params.variants.ood_levels})
    ruled = fitted(params)

    def rows(variants: dict[str, str], section: str = "", ending: str = "", ranked: bool = True) -> list[Row]:
        """`variants`: the runs of each row, by its name in the paper or its own."""
        return [
            Row(f"{name}{ending}", variant_name(name), RunsOf(runs, ood), section=section, ranked=ranked,
                published="" if ending or not ranked else name)
            for name, runs in variants.items()
            for ood in levels
        ]  # fmt: skip

    def runs_of(name: str) -> str:
        return f"{PROPOSED}-{name}"

    paper = {"full": full_row(params)} | {name: runs_of(name) for name in asked if is_paper_variant(name)}
    learned = {"full": LEARNED_T, "no_freq_cal": "learned_no_freq_cal", "no_cal": "no_cal"}
    learned = {name: runs_of(variant) for name, variant in learned.items() if variant in asked and LEARNED_T in asked}
    others = [name for name in asked if not is_paper_variant(name) and name not in (LEARNED_T, "learned_no_freq_cal")]
    own = {name: runs_of(name) for name in others if ruled or not name.startswith(LEARNED)}
    return [
        *rows(paper),
        *(rows(learned, LEARNED_SECTION, f".{LEARNED}") if ruled else []),
        *rows(own, NOT_IN_THE_PAPER, ranked=False),
    ]


def sensitivity_rows(params: Params) -> list[Row]:
    """A weight has rows of its own, or is that of the main run."""
    known = {weight_label(weight): weight for weight in (*PAPER_WEIGHTS, params.lambda_sum)}
    asked = {weight_label(weight): weight for weight in params.sensitivity.lambda_sums}
    main = {weight_label(params.lambda_sum): PROPOSED}
    weights = known | asked
    return [
        Row(
            label,
            f"λ_sum = {label}" + ("" if weights[label] else " (time branch alone)"),
            RunsOf(lambda_row(weights[label]) if label in asked else main.get(label, NOT_RUN), ood),
            published=label,
        )
        for label in sorted(weights, key=lambda label: weights[label])
        for ood in params.sensitivity.ood_levels
    ]


def branch_rows(params: Params, results: Results) -> list[Row]:
    """The branches of the methods that have several."""
    rows = []
    for row, label in trainings(params).items():
        branches = results.branches.get(row, [])
        for branch in branches if len(branches) > 1 else []:
            for ood in params.grid.ood_levels:
                name = f"{label}, {branch_name(branch)}"
                rows.append(Row(f"{row}@{branch}", name, RunsOf(row, ood, branch), ranked=False))
    return rows


def training_rows(params: Params) -> list[Row]:
    """Every training: methods, readings and variants of SafeECGMatch, arms."""
    labels = trainings(params)
    rows = [
        Row(row, label, RunsOf(row, ood), ranked=False)
        for row, label in labels.items()
        for ood in params.grid.ood_levels
    ]
    variants = list(dict.fromkeys([*params.ablation.variants, *params.variants.names]))
    levels = sorted({*params.ablation.ood_levels, *params.variants.ood_levels})
    for name in variants:
        row = f"{PROPOSED}-{name}"
        rows += [
            Row(row, variant_name(name), RunsOf(row, ood), section="variants of SafeECGMatch", ranked=False)
            for ood in levels
            if row not in labels
        ]
    for arm, section in arms(params).items():
        for method in section.methods if section.datasets else []:
            row, label = f"{method}-{arm}", f"{method_name(method).name}, {ARM_NAMES[arm]}"
            rows.append(Row(row, label, RunsOf(row, ARM_OOD), section="arms", ranked=False))
    return rows


def arms(params: Params) -> dict[str, Arm]:
    return {"seen_pool": params.arms.seen_pool, "val150": params.arms.val150}


def arm_rows(params: Params, arm: str) -> list[Row]:
    """Each method without and with the arm, and what it gains; beside a filtered pool, what no pool at all gives."""
    section = arms(params)[arm]
    beside = SUPERVISED if arm == "seen_pool" and SUPERVISED in params.grid.methods else ""
    rows = [_arm_row(beside, f"{method_name(beside).name} (no pool)")] if beside else []
    for method in section.methods:
        for branch in READ if method == PROPOSED else [REPORTED]:
            ending = f"@{branch}" if branch else ""
            name = (
                f"{method_name(method).name} ({rules(params)[PROPOSED]}, {branch})"
                if branch
                else method_name(method).name
            )
            plain, with_arm = f"{method}{ending}", f"{method}-{arm}{ending}"
            rows += [_arm_row(plain, name), _arm_row(with_arm, f"{name}, {ARM_NAMES[arm]}")]
            rows.append(_arm_row(f"{with_arm} - {plain}", f"{name}, gain by it", (with_arm, plain)))
            if beside:
                rows.append(_arm_row(f"{plain} - {beside}", f"{name}, gain over {beside.title()}", (plain, beside)))
    return rows


def _arm_row(key: str, label: str, pair: tuple[str, str] | None = None) -> Row:
    name, _, branch = key.partition("@")
    return Row(key, label, RunsOf(name, ARM_OOD, branch), ranked=False, pair=pair)


def effect_rows(params: Params) -> list[Row]:
    """The 2 x 2 of SafeECGMatch: temperature rule by prediction, frequency branch by rule; and how large nothing is."""
    known = rules(params)
    learned = f"{PROPOSED}-{LEARNED_T}"
    pairs: list[tuple[str, str, tuple[str, str]]] = []
    if learned in known:
        pairs += [
            (RULE_EFFECT, f"fitted over learned, {branch}", (f"{PROPOSED}@{branch}", f"{learned}@{branch}"))
            for branch in READ
        ]
        if CALIMATCH in methods(params):
            pairs.append((RULE_EFFECT, "fitted, time, over CaliMatch", (f"{PROPOSED}@time", CALIMATCH)))
    pairs += [
        (BRANCH_EFFECT, f"fused over time, {rule}", (f"{row}@fused", f"{row}@time")) for row, rule in known.items()
    ]
    placebos = {"two_time": known[PROPOSED]} | ({"learned_two_time": LEARNED} if learned in known else {})
    for variant, rule in placebos.items():
        if variant in params.variants.names:
            pairs.append((PLACEBO, f"second over first, {rule}", placebo(variant.removesuffix("two_time"))))
    return [
        Row(f"{first} - {second}", label, RunsOf(NOT_RUN, ood), section=section, ranked=False, pair=(first, second))
        for section, label, (first, second) in pairs
        for ood in params.grid.ood_levels
        if section != PLACEBO or ood in params.variants.ood_levels
    ]
