"""One comparison of claims.yaml in one setting: what the runs say, with p values for and against it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from safeecgmatch.config import PROPOSED
from safeecgmatch.reporting.claims import Check, Claims, Place, Reading
from safeecgmatch.reporting.contrasts import MSP, OWN, placebo
from safeecgmatch.reporting.names import (
    arm_name,
    branch_name,
    is_generated,
    method_name,
    metric_name,
    setting_name,
    variant_name,
)
from safeecgmatch.reporting.published import benchmark_methods
from safeecgmatch.reporting.statistics import Difference, Summary, relation, student_interval, summarise
from safeecgmatch.reporting.study import OVER, TRAINING, Gain, Study

POOL = "the pool's share"
NOT_IN_STUDY = "not in this study"
OUTCOMES = {  # of one comparison and of several
    "holds": ("holds", "hold"), "fails": ("fails", "fail"), "open": ("open", "open"), "absent": ("not run", "not run"),
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """One estimate with its interval; positive is better for the candidate. For shares: the number itself.

    `floor` is the candidate's of ECE, `placebo` the same difference between two branches of the same kind.
    """

    metric: str
    estimate: float
    low: float
    high: float
    relation: str = ""
    power: float = math.nan
    floor: float = math.nan
    placebo: float = math.nan


@dataclass(frozen=True)
class CheckResult:
    """`p_hold` and `p_fail`: two-sided levels at which the check holds or fails; NaN where `absent` says why not."""

    check: Check
    setting: Place
    candidate: str
    rival: str
    parts: list[Part] = field(default_factory=list)
    p_hold: float = math.nan
    p_fail: float = math.nan
    seeds: int = 0
    records: int = 0
    absent: str = ""

    def outcome(self, level: float) -> str:
        if self.absent:
            return "absent"
        return "holds" if self.p_hold <= level else "fails" if self.p_fail <= level else "open"

    @property
    def where(self) -> str:
        return setting_name(self.setting.dataset, self.setting.ood)

    @property
    def sentence(self) -> str:
        if self.absent:
            return f"{self.where}: {self.absent}"
        if self.check.kind == "purity":
            part = self.parts[0]
            share = f"{part.estimate:.3f} [{part.low:.3f}, {part.high:.3f}]"
            return f"{self.where}: unseen share among accepted {share}, in the pool {self.setting.ood / 100:g}"
        gains = " and ".join(
            f"in {scaled_name(self.check, part.metric)} {part.estimate:+.3f} [{part.low:+.3f}, {part.high:+.3f}]"
            f"{_beside(part)}"
            for part in self.parts
        )
        whose = "" if self.check.candidate == PROPOSED else f"of {row_label(self.candidate)} "
        place = f", its strongest rival{' but one' * self.check.but}" if self.check.kind == "best" else ""
        return f"{self.where}: gain {whose}{gains} over {row_label(self.rival)}{place}"


def _beside(part: Part) -> str:
    """What a difference is to be held against, in brackets."""
    known = {"placebo": f"{part.placebo:+.3f}", "floor": f"{part.floor:.3f}"}
    texts = [f"{name} {text}" for name, text in known.items() if not math.isnan(getattr(part, name))]
    return f" ({', '.join(texts)})" if texts else ""


def reasons(results: Iterable[CheckResult]) -> list[str]:
    """Why comparisons are absent, each reason once with its settings."""
    places: dict[str, list[str]] = {}
    for result in (result for result in results if result.absent):
        places.setdefault(result.absent, []).append(result.where)
    return [f"{', '.join(dict.fromkeys(names))}: {reason}" for reason, names in places.items()]


def tally(results: Sequence[CheckResult], level: float) -> str:
    """As `of 12 comparisons 1 holds, 11 open`."""
    counts = Counter(result.outcome(level) for result in results)
    words = [f"{counts[key]} {forms[counts[key] > 1]}" for key, forms in OUTCOMES.items() if counts[key]]
    return f"of {len(results)} comparisons {', '.join(words)}"


def extremes(values: Iterable[float], form: str) -> str:
    known = list(values)
    return " to ".join(dict.fromkeys(f"{value:{form}}" for value in (min(known), max(known))))


def power_of(results: Iterable[CheckResult]) -> str:
    powers = [part.power for result in results for part in result.parts if not math.isnan(part.power)]
    return f"power {extremes(powers, '.2f')}" if powers else ""


def scaled_name(check: Check, metric: str = "") -> str:
    name = metric or check.metric
    return metric_name(name) + (" after scaling" if check.scaling == "posthoc" and name != "acc" else "")


def row_label(key: str) -> str:
    """A row key in words."""
    if key.endswith(MSP):
        return "1 - max probability"
    name, _, branch = key.removesuffix(OWN).partition("@")
    method, _, tag = name.partition("-")
    if tag.startswith("lambda_"):
        label = f"lambda_sum = {tag.removeprefix('lambda_')}"
    elif arm_name(tag):
        label = f"{method_name(method).name} with {arm_name(tag)}"
    else:
        label = variant_name(tag) if tag else method_name(method).name
    return f"{label} ({branch_name(branch)})" if branch else label


def check_in(study: Study, claims: Claims, check: Check, setting: Place, reading: Reading) -> CheckResult:
    """Everything but the verdict: the numbers of one check in one setting under one reading."""
    candidate = reading.row(check.candidate)
    rival = candidate + MSP if check.kind == "score" else POOL if check.kind == "purity" else reading.row(check.rival)
    empty = CheckResult(check, setting, candidate, rival)
    if setting.dataset not in study.params.grid.datasets:
        return replace(empty, absent=NOT_IN_STUDY)
    if is_generated(study.params, setting.dataset):
        return replace(empty, absent="generated data, no verdict")
    if check.kind == "purity":
        return _purity(study, claims, empty)
    margin = claims.margin if check.margin is None else check.margin

    def gain(metric: str, candidate: str, rival: str) -> Gain | None:
        scaling = "none" if metric == "acc" else check.scaling  # a temperature does not change it
        return study.gain(setting.dataset, f"{candidate}{OVER}{rival}", setting.ood, metric, scaling)

    def enough(metric: str, rival: str) -> Gain | None:
        found = gain(metric, candidate, rival)
        return found if found and found.difference.seeds >= claims.minimum_seeds else None

    if check.kind == "best":
        methods = benchmark_methods()
        against = {name: found for name in methods if name != PROPOSED and (found := enough(check.metric, name))}
        if len(against) < len(methods) - 1:
            reason = f"only {len(against) + 1} of {len(methods)} methods have {claims.minimum_seeds} common seeds"
            return replace(empty, absent=reason)
        rival, p_hold, p_fail = _best({name: found.difference for name, found in against.items()}, margin, check.but)
        measured = [against[rival]]
    else:
        measured = [found for metric in check.metrics if (found := enough(metric, rival))]
        if len(measured) < len(check.metrics):
            whose = f"{row_label(candidate)} and {row_label(rival)}"
            return replace(empty, absent=f"fewer than {claims.minimum_seeds} common seeds of {whose}")
        p_hold, p_fail = RULES[check.kind]([found.difference for found in measured], margin)
    parts = []
    for metric, found in zip(check.metrics, measured, strict=True):
        one, noise = found.difference, gain(metric, *placebo(reading.rule))
        power = one.power_of_equivalence if check.kind == "equivalent" else one.power
        floor = study.value(setting.dataset, candidate, setting.ood, "ece_floor", check.scaling)
        parts.append(
            Part(
                metric,
                one.estimate,
                *one.interval(1 - claims.level),
                relation(one, margin, claims.level),
                power(margin, claims.level),
                floor.mean if floor and metric == "ece" else math.nan,
                noise.difference.estimate if noise else math.nan,
            )
        )
    first = measured[0]
    return _judged(replace(empty, rival=rival, records=first.records), parts, p_hold, p_fail, first.difference.seeds)


def _judged(empty: CheckResult, parts: list[Part], p_hold: float, p_fail: float, seeds: int) -> CheckResult:
    return replace(empty, parts=parts, p_hold=min(1.0, p_hold), p_fail=min(1.0, p_fail), seeds=seeds)


Differences = list[Difference]


def _superior(of: Differences, margin: float) -> tuple[float, float]:
    return 2 * of[0].p_above(0), 2 * of[0].p_below(margin)


def _noninferior(of: Differences, margin: float) -> tuple[float, float]:
    return 2 * of[0].p_above(-margin), 2 * of[0].p_below(-margin)


def _equivalent(of: Differences, margin: float) -> tuple[float, float]:
    """Two one-sided tests, each at the whole level."""
    one = of[0]
    return max(one.p_above(-margin), one.p_below(margin)), 2 * min(one.p_above(margin), one.p_below(-margin))


def _tradeoff(of: Differences, margin: float) -> tuple[float, float]:
    """Two ways to hold and three to fail, so their p values count twice and three times."""
    first, second = of
    ways = [max(one.p_above(0), other.p_above(-margin)) for one, other in ((first, second), (second, first))]
    failures = [first.p_below(-margin), second.p_below(-margin), max(first.p_below(margin), second.p_below(margin))]
    return 2 * 2 * min(ways), 2 * 3 * min(failures)


RULES: dict[str, Callable[[Differences, float], tuple[float, float]]] = {
    "superior": _superior,
    "score": _superior,
    "noninferior": _noninferior,
    "equivalent": _equivalent,
    "tradeoff": _tradeoff,
}


def _best(of: dict[str, Difference], margin: float, but: int) -> tuple[str, float, float]:
    """Non-inferior to all rivals but `but`, inferior to more than that: the rival that decides, and both p values.

    For "at least u of n fail" the u-th smallest p counts n - u + 1 times (partial conjunction, Bonferroni). To hold,
    the choice of the one left out is paid for by p being two-sided.
    """
    ordered = sorted(of, key=lambda rival: of[rival].p_above(-margin), reverse=True)
    p_hold, p_fail = _noninferior([of[ordered[but]]], margin)
    return ordered[but], p_hold, (len(of) - but) * p_fail


def _purity(study: Study, claims: Claims, empty: CheckResult) -> CheckResult:
    """Student's test on the logit scale, over seeds: the pool is the whole population, so records add nothing."""
    check, setting, row = empty.check, empty.setting, empty.candidate
    trained = row.partition("@")[0]
    values = list(study.seeds(setting.dataset, trained, setting.ood, check.metric, TRAINING).values())
    if len(values) < claims.minimum_seeds:
        return replace(empty, absent=f"fewer than {claims.minimum_seeds} seeds of {row_label(row)} accepted anything")
    summary = summarise(values)
    p_below = share_p_below(summary, setting.ood / 100 - (check.margin or 0.0))
    part = Part(check.metric, summary.mean, *student_interval(summary, bounded=True, confidence=1 - claims.level))
    return _judged(empty, [part], 2 * p_below, 2 * (1 - p_below), len(values))


def share_p_below(summary: Summary, value: float) -> float:
    """One-sided p against "the mean share is at least `value`", Student's t on the logit scale."""
    from scipy.special import logit, stdtr

    if summary.std == 0 or not 0 < summary.mean < 1:
        return 0.0 if summary.mean < value else 1.0
    se = summary.std / summary.seeds**0.5 / (summary.mean * (1 - summary.mean))
    return float(stdtr(summary.seeds - 1, np.clip((logit(summary.mean) - logit(value)) / se, -1e6, 1e6)))
