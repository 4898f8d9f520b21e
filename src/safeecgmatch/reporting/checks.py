"""One comparison of claims.yaml in one setting: what the runs say, with p values for and against it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.errors import UserError
from safeecgmatch.reporting.claims import Check, Claims, Reading, Setting
from safeecgmatch.reporting.contrasts import MSP, OWN, placebo
from safeecgmatch.reporting.names import (
    arm_name,
    branch_name,
    dataset_name,
    is_generated,
    method_name,
    metric_name,
    variant_name,
)
from safeecgmatch.reporting.published import benchmark_methods
from safeecgmatch.reporting.sources import with_corpora
from safeecgmatch.reporting.statistics import Difference, Summary, relation, student_interval, summarise

POOL = "the pool's share"
NOT_IN_STUDY = "not in this study"
PAIR = ("dataset", "ood", "metric", "scaling", "candidate", "rival")
Pair = tuple[str, int, str, str, str, str]


@dataclass(frozen=True)
class Study:
    """What `evaluate` wrote about a study."""

    params: Params
    metrics: pd.DataFrame
    runs: pd.DataFrame
    contrasts: pd.DataFrame

    @cached_property
    def differences(self) -> dict[Pair, tuple[Difference, int]]:
        """The lines of contrasts.csv with their numbers of test records."""
        frame = self.contrasts
        keys = zip(*(frame[name] for name in PAIR), strict=True)
        spreads = zip(*(frame[name] for name in ("estimate", "se_seeds", "se_records", "seeds")), strict=True)
        return {
            key: (Difference(*spread), records)
            for key, spread, records in zip(keys, spreads, frame["records"], strict=True)
        }

    @cached_property
    def floors(self) -> dict[tuple[str, int, str, str, str], float]:
        """The mean over seeds of what ECE would be if confidences were right, by setting, scaling, row and metric."""
        frame = self.metrics[(self.metrics["metric"] == "ece_floor") & self.metrics["counted"]]
        found: dict[tuple[str, int, str, str, str], list[float]] = defaultdict(list)
        columns = ["dataset", "ood", "scaling", "row", "branch", "reported", "method", "value"]
        for dataset, ood, scaling, row, branch, reported, method, value in frame[columns].to_numpy().tolist():
            if method == PROPOSED or reported:
                key = f"{row}@{branch}" if method == PROPOSED else row
                found[dataset, ood, scaling, key, "ece"].append(value)
        return {key: summarise(values).mean for key, values in found.items()}


def read_study(params: Params, folder: Path) -> Study:
    frames = {}
    for name in ("metrics", "runs", "contrasts", "plots/corpus"):
        file = folder / f"{name}.csv"
        if not file.is_file():
            raise UserError(f"{file} does not exist; run `dvc repro evaluate` or `safeecgmatch report` first.")
        frames[name] = pd.read_csv(file)
    return Study(with_corpora(params, frames.pop("plots/corpus")), **frames)


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
    setting: Setting
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
    def sentence(self) -> str:
        where = f"{setting_name(self.setting)}"
        if self.absent:
            return f"{where}: {self.absent}"
        if self.check.kind == "purity":
            part = self.parts[0]
            share = f"{part.estimate:.3f} [{part.low:.3f}, {part.high:.3f}]"
            return f"{where}: unseen share among accepted {share}, in the pool {self.setting.ood / 100:g}"
        gains = " and ".join(
            f"in {scaled_name(self.check, part.metric)} {part.estimate:+.3f} [{part.low:+.3f}, {part.high:+.3f}]"
            f"{_beside(part)}"
            for part in self.parts
        )
        whose = "" if self.check.candidate == PROPOSED else f"of {row_label(self.candidate)} "
        place = f", its strongest rival{' but one' * self.check.but}" if self.check.kind == "best" else ""
        return f"{where}: gain {whose}{gains} over {row_label(self.rival)}{place}"


def _beside(part: Part) -> str:
    """What a difference is to be held against, in brackets."""
    known = {"placebo": f"{part.placebo:+.3f}", "floor": f"{part.floor:.3f}"}
    texts = [f"{name} {text}" for name, text in known.items() if not math.isnan(getattr(part, name))]
    return f" ({', '.join(texts)})" if texts else ""


def setting_name(setting: Setting) -> str:
    return f"{dataset_name(setting.dataset).name} {setting.ood} %"


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


def check_in(study: Study, claims: Claims, check: Check, setting: Setting, reading: Reading) -> CheckResult:
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

    def found(metric: str, rival: str) -> tuple[Difference, int] | None:
        pair = difference(study, setting, metric, check.scaling, candidate, rival)
        return pair if pair and pair[0].seeds >= claims.minimum_seeds else None

    if check.kind == "best":
        methods = benchmark_methods()
        against = {name: pair for name in methods if name != PROPOSED and (pair := found(check.metric, name))}
        if len(against) < len(methods) - 1:
            reason = f"only {len(against) + 1} of {len(methods)} methods have {claims.minimum_seeds} common seeds"
            return replace(empty, absent=reason)
        rival, p_hold, p_fail = _best({name: one for name, (one, _) in against.items()}, margin, check.but)
        measured = [against[rival]]
    else:
        pairs = [found(metric, rival) for metric in check.metrics]
        measured = [pair for pair in pairs if pair]
        if len(measured) < len(pairs):
            whose = f"{row_label(candidate)} and {row_label(rival)}"
            return replace(empty, absent=f"fewer than {claims.minimum_seeds} common seeds of {whose}")
        p_hold, p_fail = RULES[check.kind]([one for one, _ in measured], margin)
    parts = []
    for metric, (one, _) in zip(check.metrics, measured, strict=True):
        power = one.power_of_equivalence if check.kind == "equivalent" else one.power
        noise = difference(study, setting, metric, check.scaling, *placebo(reading.rule))
        parts.append(
            Part(
                metric,
                one.estimate,
                *one.interval(1 - claims.level),
                relation(one, margin, claims.level),
                power(margin, claims.level),
                study.floors.get((setting.dataset, setting.ood, check.scaling, candidate, metric), math.nan),
                noise[0].estimate if noise else math.nan,
            )
        )
    return _judged(replace(empty, rival=rival, records=measured[0][1]), parts, p_hold, p_fail, measured[0][0].seeds)


def _judged(empty: CheckResult, parts: list[Part], p_hold: float, p_fail: float, seeds: int) -> CheckResult:
    return replace(empty, parts=parts, p_hold=min(1.0, p_hold), p_fail=min(1.0, p_fail), seeds=seeds)


def difference(
    study: Study, setting: Setting, metric: str, scaling: str, candidate: str, rival: str
) -> tuple[Difference, int] | None:
    """The paired difference and its number of test records, whichever way round contrasts.csv has the pair."""
    scaling = "none" if metric == "acc" else scaling  # a temperature does not change it
    measure = (setting.dataset, setting.ood, metric, scaling)
    if (*measure, candidate, rival) in study.differences:
        return study.differences[*measure, candidate, rival]
    turned = study.differences.get((*measure, rival, candidate))
    return None if turned is None else (replace(turned[0], estimate=-turned[0].estimate), turned[1])


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
    frame = study.metrics
    chosen = frame[
        frame["counted"]
        & (frame["dataset"] == setting.dataset)
        & (frame["ood"] == setting.ood)
        & (frame["metric"] == check.metric)
        & (frame["row"] == row.partition("@")[0])
    ]
    values = chosen["value"].dropna().tolist()
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
