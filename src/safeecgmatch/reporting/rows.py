"""Which rows the tables have, and which runs are in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from safeecgmatch.cells import ARM_OOD, cells, lambda_row, weight_label
from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.reporting.contrasts import placebo
from safeecgmatch.reporting.names import branch_name, in_table_order, is_paper_variant, method_name, variant_name
from safeecgmatch.reporting.plot_data import READ
from safeecgmatch.reporting.published import benchmark_methods
from safeecgmatch.reporting.study import OVER
from safeecgmatch.reporting.twin import CALIMATCH, LEARNED_T, fitted, is_derived

SUPERVISED, LEARNED = "supervised", "learned"
PAPER_WEIGHTS = (1 / 3, 1.0, 3.0)
NOT_IN_THE_PAPER = "not in the paper"
LEARNED_SECTION = "temperatures learned"
VARIANTS_SECTION = "variants of SafeECGMatch"
ARM_NAMES = {"seen_pool": "filtered pool", "val150": "150 validation labels"}
RULE_EFFECT = "temperature rule"
BRANCH_EFFECT = "frequency branch"
PLACEBO = "placebo, two branches of the same kind"
CALIMATCH_TWIN = f"{PROPOSED}-{LEARNED_T}@time"


@dataclass(frozen=True)
class Row:
    """What a table has a block for, with a line for each OOD level; a new `section` is announced by a rule."""

    key: str  # as `Study` names its row
    label: str
    levels: Sequence[int]
    venue: str = ""
    cite: str = ""
    section: str = ""
    ranked: bool = True
    published: str = ""  # the row of the paper's table: a method, a variant, a weight

    @property
    def is_gain(self) -> bool:
        return OVER in self.key

    @property
    def trainings(self) -> list[str]:
        """The rows of runs.csv that it rests on."""
        return [part.partition("@")[0] for part in self.key.split(OVER)]


def methods(params: Params) -> list[str]:
    return in_table_order([*params.grid.methods, *([CALIMATCH] if is_derived(params) else []), PROPOSED])


def rules(params: Params) -> dict[str, str]:
    """The rows of SafeECGMatch that are readings of one method, and by which rule each gets its temperatures."""
    if not fitted(params):  # `learned_t` is the main run under another name
        return {PROPOSED: LEARNED}
    others = {f"{PROPOSED}-{name}": LEARNED if name == LEARNED_T else variant_name(name) for name in params.readings}
    return {PROPOSED: "fitted", **others}


def entries(params: Params) -> list[Row]:
    """Every method in the order of Table 3, SafeECGMatch under each of its readings: what figures show, too."""
    found = []
    for method in methods(params):
        name, levels = method_name(method), params.grid.ood_levels
        if method != PROPOSED:
            found.append(Row(method, name.name, levels, name.venue, name.cite, published=method))
            continue
        readings = [
            Row(f"{row}@{branch}", f"{name.name} ({rule}, {branch})", levels, published=method)
            for row, rule in rules(params).items()
            for branch in READ
            if branch == "time" or row != PROPOSED or params.lambda_sum > 0
        ]
        found += [replace(readings[0], cite=name.cite), *readings[1:]]
    return found


def trainings(params: Params) -> dict[str, str]:
    """The rows that Table 3 rests on, with their labels: SafeECGMatch once for each temperature rule."""
    labels = {method: method_name(method).name for method in methods(params) if method != PROPOSED}
    return labels | {row: f"{method_name(PROPOSED).name} ({rule})" for row, rule in rules(params).items()}


def method_rows(params: Params, chosen: Sequence[str]) -> list[Row]:
    """Those of the paper are ranked, others come below a rule."""
    paper = benchmark_methods()
    rows = [
        row if row.published in paper else replace(row, section=NOT_IN_THE_PAPER, ranked=False)
        for row in entries(params)
        if row.published in chosen
    ]
    return sorted(rows, key=lambda row: (not row.ranked, chosen.index(row.published)))


def weight_row(params: Params, weight: float) -> str:
    """The runs of SafeECGMatch with this lambda_sum: the main ones, or those of the sensitivity, if anybody asks."""
    return PROPOSED if weight_label(weight) == weight_label(params.lambda_sum) else lambda_row(weight)


def ablation_rows(params: Params) -> list[Row]:
    """The paper's rows, the same under learned temperatures, then those that the paper does not have."""
    asked: list[str] = list(dict.fromkeys([*params.ablation.variants, *params.variants.names, *params.readings]))
    levels = sorted({*params.ablation.ood_levels, *params.variants.ood_levels})
    ruled = fitted(params)

    def rows(names: Mapping[str, str], section: str = "", ranked: bool = True) -> list[Row]:
        """`names`: the variant that was run, by the name that the paper or we have for it."""
        return [
            Row(
                f"{PROPOSED}-{variant}", variant_name(name), levels, section=section, ranked=ranked,
                published="" if section else name,
            )
            for name, variant in names.items()
            if variant in asked
        ]  # fmt: skip

    learned = {"full": LEARNED_T, "no_freq_cal": "learned_no_freq_cal", "no_cal": "no_cal"}
    others = [name for name in asked if not is_paper_variant(name) and name not in learned.values()]
    return [
        Row(weight_row(params, params.ablation.lambda_sum), variant_name("full"), levels, published="full"),
        *rows({name: name for name in asked if is_paper_variant(name)}),
        *(rows(learned, LEARNED_SECTION) if ruled and LEARNED_T in asked else []),
        *rows({name: name for name in others if ruled or not name.startswith(LEARNED)}, NOT_IN_THE_PAPER, False),
    ]


def sensitivity_rows(params: Params) -> list[Row]:
    """The paper's weights, that of the main run, and those that were asked for."""
    asked = (*PAPER_WEIGHTS, params.lambda_sum, *params.sensitivity.lambda_sums)
    weights = {weight_label(weight): weight for weight in asked}
    return [
        Row(
            weight_row(params, weight), f"λ_sum = {label}{'' if weight else ' (time branch alone)'}",
            params.sensitivity.ood_levels, published=label,
        )
        for label, weight in sorted(weights.items(), key=lambda item: item[1])
    ]  # fmt: skip


def branch_rows(params: Params, branches: Mapping[str, list[str]]) -> list[Row]:
    """The branches of the methods that have several."""
    return [
        Row(f"{row}@{branch}", f"{label}, {branch_name(branch)}", params.grid.ood_levels, ranked=False)
        for row, label in trainings(params).items()
        for branch in branches.get(row, [])
        if len(branches[row]) > 1
    ]


def training_rows(params: Params) -> list[Row]:
    """Every training: methods, readings and variants of SafeECGMatch, arms."""
    rows = {row: Row(row, label, params.grid.ood_levels, ranked=False) for row, label in trainings(params).items()}
    for cell in (cell for cell in cells(params) if cell.role in ("ablation", "arm") and cell.row not in rows):
        arm = f"{method_name(cell.method).name}, {ARM_NAMES[cell.arm]}" if cell.arm else ""
        levels = dict.fromkeys(other.ood for other in cells(params) if other.row == cell.row)
        rows[cell.row] = Row(
            cell.row, arm or variant_name(cell.variant), tuple(levels), section="arms" if arm else VARIANTS_SECTION,
            ranked=False,
        )  # fmt: skip
    return list(rows.values())


def arm_rows(params: Params, arm: str) -> list[Row]:
    """Each method without and with the arm, and what it gains; beside a filtered pool, what no pool at all gives."""
    asked = params.arms.seen_pool if arm == "seen_pool" else params.arms.val150
    beside = SUPERVISED if arm == "seen_pool" and SUPERVISED in params.grid.methods else ""
    labels = {beside: f"{method_name(beside).name} (no pool)"} if beside else {}
    for method in asked.methods:
        for branch in READ if method == PROPOSED else [""]:
            plain, with_arm = (f"{row}@{branch}" if branch else row for row in (method, f"{method}-{arm}"))
            name = method_name(method).name + (f" ({rules(params)[PROPOSED]}, {branch})" if branch else "")
            labels |= {plain: name, with_arm: f"{name}, {ARM_NAMES[arm]}"}
            labels[f"{with_arm}{OVER}{plain}"] = f"{name}, gain by it"
            if beside:
                labels[f"{plain}{OVER}{beside}"] = f"{name}, gain over {method_name(beside).name}"
    return [Row(row, label, (ARM_OOD,), ranked=False) for row, label in labels.items()]


def effect_rows(params: Params) -> list[Row]:
    """The 2 x 2 of SafeECGMatch: temperature rule by prediction, frequency branch by rule; and how large nothing is."""
    known, levels = rules(params), params.grid.ood_levels
    learned = f"{PROPOSED}-{LEARNED_T}"

    def gain(section: str, label: str, first: str, second: str) -> Row:
        here = [ood for ood in levels if section != PLACEBO or ood in params.variants.ood_levels]
        return Row(f"{first}{OVER}{second}", label, here, section=section, ranked=False)

    rows = []
    if learned in known:
        rows += [
            gain(RULE_EFFECT, f"fitted over learned, {branch}", f"{PROPOSED}@{branch}", f"{learned}@{branch}")
            for branch in READ
        ]
        if CALIMATCH in methods(params):
            rows.append(gain(RULE_EFFECT, "fitted, time, over CaliMatch", f"{PROPOSED}@time", CALIMATCH))
    rows += [
        gain(BRANCH_EFFECT, f"fused over time, {rule}", f"{row}@fused", f"{row}@time") for row, rule in known.items()
    ]
    placebos = {"two_time": known[PROPOSED]} | ({"learned_two_time": LEARNED} if learned in known else {})
    rows += [
        gain(PLACEBO, f"second over first, {rule}", *placebo(variant.removesuffix("two_time")))
        for variant, rule in placebos.items()
        if variant in params.variants.names
    ]
    return [row for row in rows if row.levels]
