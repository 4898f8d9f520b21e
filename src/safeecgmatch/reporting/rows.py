"""Which rows the tables have, and which runs are in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    """One printed line; consecutive lines of one row form a block, a new `section` is announced by a rule."""

    key: str  # as `Results` names its row
    label: str
    ood: int
    venue: str = ""
    cite: str = ""
    section: str = ""
    ranked: bool = True
    published: str = ""  # the row of the paper's table

    @property
    def is_gain(self) -> bool:
        return OVER in self.key

    @property
    def trainings(self) -> list[str]:
        """The rows of runs.csv that it rests on."""
        return [part.partition("@")[0] for part in self.key.split(OVER)]


@dataclass(frozen=True)
class TableEntry:
    """A method, or one reading of SafeECGMatch: what gets a row in Tables 1 and 3, and its place in the figures."""

    method: str
    row: str
    branch: str  # empty for the one that the method reports
    label: str

    @property
    def key(self) -> str:
        """As `Results` names it."""
        return f"{self.row}@{self.branch}" if self.branch else self.row


def methods(params: Params) -> list[str]:
    return in_table_order([*params.grid.methods, *([CALIMATCH] if is_derived(params) else []), PROPOSED])


def rules(params: Params) -> dict[str, str]:
    """The rows of SafeECGMatch that are readings of one method, and by which rule each gets its temperatures."""
    if not fitted(params):  # `learned_t` is the main run under another name
        return {PROPOSED: LEARNED}
    others = {f"{PROPOSED}-{name}": LEARNED if name == LEARNED_T else variant_name(name) for name in params.readings}
    return {PROPOSED: "fitted", **others}


def entries(params: Params) -> list[TableEntry]:
    """Every method in the order of Table 3, SafeECGMatch under each of its readings."""
    found = []
    for method in methods(params):
        name = method_name(method).name
        if method != PROPOSED:
            found.append(TableEntry(method, method, "", name))
            continue
        for row, rule in rules(params).items():
            both = row != PROPOSED or params.lambda_sum > 0
            found += [
                TableEntry(PROPOSED, row, branch, f"{name} ({rule}, {branch})")
                for branch in (READ if both else READ[1:])
            ]
    return found


def trainings(params: Params) -> dict[str, str]:
    """The rows that Table 3 rests on, with their labels: SafeECGMatch once for each temperature rule."""
    labels = {method: method_name(method).name for method in methods(params) if method != PROPOSED}
    return labels | {row: f"{method_name(PROPOSED).name} ({rule})" for row, rule in rules(params).items()}


def method_rows(params: Params, chosen: Sequence[str]) -> list[Row]:
    """A block per method and reading; those of the paper are ranked, others come below a rule."""
    rows: list[Row] = []
    paper = benchmark_methods()
    shown = [entry for entry in entries(params) if entry.method in chosen]
    for entry in sorted(shown, key=lambda entry: (entry.method not in paper, chosen.index(entry.method))):
        name, known = method_name(entry.method), entry.method in paper
        venue = "" if entry.method == PROPOSED else name.venue
        cite = "" if any(row.published == entry.method for row in rows) else name.cite
        section = "" if known else NOT_IN_THE_PAPER
        rows += [
            Row(entry.key, entry.label, ood, venue, cite, section, known, entry.method)
            for ood in params.grid.ood_levels
        ]
    return rows


def weight_row(params: Params, weight: float) -> str:
    """The runs of SafeECGMatch with this lambda_sum: the main ones, or those of the sensitivity, if anybody asks."""
    return PROPOSED if weight_label(weight) == weight_label(params.lambda_sum) else lambda_row(weight)


def ablation_rows(params: Params) -> list[Row]:
    """The paper's rows, the same under learned temperatures, then those that the paper does not have."""
    asked: list[str] = list(dict.fromkeys([*params.ablation.variants, *params.variants.names, *params.readings]))
    levels = sorted({*params.ablation.ood_levels, *params.variants.ood_levels})
    ruled = fitted(params)

    def rows(variants: dict[str, str], section: str = "", ranked: bool = True) -> list[Row]:
        """`variants`: the runs of each row, by its name in the paper or its own."""
        return [
            Row(runs, variant_name(name), ood, section=section, ranked=ranked, published="" if section else name)
            for name, runs in variants.items()
            for ood in levels
        ]

    def of(names: dict[str, str]) -> dict[str, str]:
        return {name: f"{PROPOSED}-{variant}" for name, variant in names.items() if variant in asked}

    learned = {"full": LEARNED_T, "no_freq_cal": "learned_no_freq_cal", "no_cal": "no_cal"}
    others = [name for name in asked if not is_paper_variant(name) and name not in (LEARNED_T, "learned_no_freq_cal")]
    return [
        *rows({"full": weight_row(params, params.ablation.lambda_sum)}),
        *rows(of({name: name for name in asked if is_paper_variant(name)})),
        *(rows(of(learned), LEARNED_SECTION) if ruled and LEARNED_T in asked else []),
        *rows(of({name: name for name in others if ruled or not name.startswith(LEARNED)}), NOT_IN_THE_PAPER, False),
    ]


def sensitivity_rows(params: Params) -> list[Row]:
    """The paper's weights, that of the main run, and those that were asked for."""
    weights = {weight_label(weight): weight for weight in (*PAPER_WEIGHTS, params.lambda_sum)}
    weights |= {weight_label(weight): weight for weight in params.sensitivity.lambda_sums}
    return [
        Row(
            weight_row(params, weight), f"λ_sum = {label}{'' if weight else ' (time branch alone)'}", ood,
            published=label,
        )
        for label, weight in sorted(weights.items(), key=lambda item: item[1])
        for ood in params.sensitivity.ood_levels
    ]  # fmt: skip


def branch_rows(params: Params, branches: Mapping[str, list[str]]) -> list[Row]:
    """The branches of the methods that have several."""
    return [
        Row(f"{row}@{branch}", f"{label}, {branch_name(branch)}", ood, ranked=False)
        for row, label in trainings(params).items()
        for branch in branches.get(row, [])
        if len(branches[row]) > 1
        for ood in params.grid.ood_levels
    ]


def training_rows(params: Params) -> list[Row]:
    """Every training: methods, readings and variants of SafeECGMatch, arms."""
    labels = trainings(params)
    rows = {
        (row, ood): Row(row, label, ood, ranked=False)
        for row, label in labels.items()
        for ood in params.grid.ood_levels
    }
    for cell in (cell for cell in cells(params) if cell.role in ("ablation", "arm") and cell.row not in labels):
        arm = f"{method_name(cell.method).name}, {ARM_NAMES[cell.arm]}" if cell.arm else ""
        rows[cell.row, cell.ood] = Row(
            cell.row, arm or variant_name(cell.variant), cell.ood, section="arms" if arm else VARIANTS_SECTION,
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
    return [Row(row, label, ARM_OOD, ranked=False) for row, label in labels.items()]


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
        Row(OVER.join(pair), label, ood, section=section, ranked=False)
        for section, label, pair in pairs
        for ood in params.grid.ood_levels
        if section != PLACEBO or ood in params.variants.ood_levels
    ]
