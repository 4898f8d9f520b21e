"""One comparison of claims.yaml in one setting: what the runs say, with p values for and against it."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.errors import UserError
from safeecgmatch.reporting.barriers import generated
from safeecgmatch.reporting.claims import Check, Claims, Reading, Setting
from safeecgmatch.reporting.contrasts import MSP
from safeecgmatch.reporting.names import branch_name, dataset_name, method_name, metric_name, variant_name
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
    ranks: pd.DataFrame

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
    def rank_lines(self) -> dict[tuple[Any, ...], dict[Hashable, Any]]:
        names = ["dataset", "ood", "metric", "scaling", "row"]
        return {tuple(line[name] for name in names): line for line in self.ranks.to_dict("records")}


def read_study(params: Params, folder: Path) -> Study:
    frames = {}
    for name in ("metrics", "runs", "contrasts", "ranks"):
        file = folder / f"{name}.csv"
        if not file.is_file():
            raise UserError(f"{file} does not exist; run `dvc repro evaluate` or `safeecgmatch report` first.")
        frames[name] = pd.read_csv(file)
    return Study(params, **frames)


@dataclass(frozen=True)
class Part:
    """One estimate with its interval; positive is better for the candidate. For shares and ranks: the number itself."""

    metric: str
    estimate: float
    low: float
    high: float
    relation: str = ""
    power: float = math.nan


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
        if self.check.kind == "rank":
            part = self.parts[0]
            return f"{where}: P(rank <= {self.check.top}) in {scaled_name(self.check)} = {part.estimate:.2f}"
        if self.check.kind == "purity":
            part = self.parts[0]
            share = f"{part.estimate:.3f} [{part.low:.3f}, {part.high:.3f}]"
            return f"{where}: unseen share among accepted {share}, in the pool {self.setting.ood / 100:g}"
        gains = " and ".join(
            f"in {scaled_name(self.check, part.metric)} {part.estimate:+.3f} [{part.low:+.3f}, {part.high:+.3f}]"
            for part in self.parts
        )
        whose = "" if self.check.candidate == PROPOSED else f"of {row_label(self.candidate)} "
        return f"{where}: gain {whose}{gains} over {row_label(self.rival)}"


def setting_name(setting: Setting) -> str:
    return f"{dataset_name(setting.dataset).name} {setting.ood} %"


def scaled_name(check: Check, metric: str = "") -> str:
    name = metric or check.metric
    return metric_name(name) + (" after scaling" if check.scaling == "posthoc" and name != "acc" else "")


def row_label(key: str) -> str:
    """A row key in words."""
    if key.endswith(MSP):
        return "1 - max probability"
    name, _, branch = key.partition("@")
    method, _, variant = name.partition("-")
    if variant.startswith("lambda_"):
        label = f"lambda_sum = {variant.removeprefix('lambda_')}"
    else:
        label = variant_name(variant) if variant else method_name(method).name
    return f"{label} ({branch_name(branch)})" if branch else label


def check_in(study: Study, claims: Claims, check: Check, setting: Setting, reading: Reading) -> CheckResult:
    """Everything but the verdict: the numbers of one check in one setting under one reading."""
    candidate = reading.row(check.candidate)
    rival = candidate + MSP if check.kind == "score" else POOL if check.kind == "purity" else reading.row(check.rival)
    empty = CheckResult(check, setting, candidate, rival)

    def without(reason: str) -> CheckResult:
        return CheckResult(check, setting, candidate, rival, absent=reason)

    if setting.dataset not in study.params.grid.datasets:
        return without(NOT_IN_STUDY)
    if generated(study.params, setting.dataset):
        return without("generated data, no verdict")
    if check.kind == "rank":
        return _rank(study, claims, empty)
    if check.kind == "purity":
        return _purity(study, claims, empty)
    metrics = ["acc", "ece"] if check.kind == "tradeoff" else [check.metric]
    found = [difference(study, setting, metric, check.scaling, candidate, rival) for metric in metrics]
    if any(item is None or item[0].seeds < claims.minimum_seeds for item in found):
        return without(
            f"fewer than {claims.minimum_seeds} common seeds of {row_label(candidate)} and {row_label(rival)}"
        )
    measured = [item for item in found if item is not None]
    differences = [item[0] for item in measured]
    margin = claims.margin if check.margin is None else check.margin
    p_hold, p_fail = RULES[check.kind](differences, margin)
    parts = [
        Part(
            metric,
            one.estimate,
            *one.interval(1 - claims.level),
            relation(one, margin, claims.level),
            one.power_of_equivalence(margin, claims.level)
            if check.kind == "equivalent"
            else one.power(margin, claims.level),
        )
        for metric, one in zip(metrics, differences, strict=True)
    ]
    return CheckResult(
        check,
        setting,
        candidate,
        rival,
        parts,
        min(1.0, p_hold),
        min(1.0, p_fail),
        differences[0].seeds,
        measured[0][1],
    )


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
    failures = [first.p_below(0), second.p_below(0), max(first.p_below(margin), second.p_below(margin))]
    return 2 * 2 * min(ways), 2 * 3 * min(failures)


RULES: dict[str, Callable[[Differences, float], tuple[float, float]]] = {
    "superior": _superior,
    "score": _superior,
    "noninferior": _noninferior,
    "equivalent": _equivalent,
    "tradeoff": _tradeoff,
}


def _rank(study: Study, claims: Claims, empty: CheckResult) -> CheckResult:
    """From the rank distribution; its power is that of a gap of `margin` to the rival that is closest."""
    check, setting, row = empty.check, empty.setting, empty.candidate
    scaling = "none" if check.metric == "acc" else check.scaling
    line = study.rank_lines.get((setting.dataset, setting.ood, check.metric, scaling, row))
    if line is None or line["seeds"] < claims.minimum_seeds:
        return CheckResult(check, setting, row, "", absent=f"too few runs of {row_label(row)} and its rivals")
    if line["methods"] < claims.methods:
        reason = f"only {line['methods']} of {claims.methods} methods have {claims.minimum_seeds} seeds"
        return CheckResult(check, setting, row, "", absent=reason)
    chance = sum(line[f"rank_{place}"] for place in range(1, check.top + 1))
    rivals = [
        found[0]
        for rival in study.params.grid.methods
        if (found := difference(study, setting, check.metric, scaling, row, rival))
    ]
    nearest = min(rivals, key=lambda one: abs(one.estimate))
    scale = claims.level / (1 - check.probability)  # a probability of 0.95 is a level of 0.05
    power = nearest.power(claims.margin, claims.level)
    part = Part(check.metric, chance, math.nan, math.nan, power=power)
    return CheckResult(check, setting, row, "", [part], scale * (1 - chance), scale * chance, int(line["seeds"]))


def _purity(study: Study, claims: Claims, empty: CheckResult) -> CheckResult:
    """Student's test on the logit scale, over seeds: the pool is the whole population, so records add nothing."""
    check, setting, row = empty.check, empty.setting, empty.candidate
    variant = row.partition("@")[0].removeprefix(PROPOSED).removeprefix("-") or "full"
    frame = study.metrics
    chosen = frame[
        frame["counted"]
        & (frame["dataset"] == setting.dataset)
        & (frame["ood"] == setting.ood)
        & (frame["method"] == PROPOSED)
        & (frame["variant"] == variant)
        & (frame["metric"] == check.metric)
        & ~frame["cell"].str.contains("-lambda_")
    ]
    values = chosen["value"].dropna().tolist()
    if len(values) < claims.minimum_seeds:
        reason = f"fewer than {claims.minimum_seeds} seeds of {row_label(row)} accepted anything"
        return CheckResult(check, setting, row, empty.rival, absent=reason)
    summary = summarise(values)
    p_below = share_p_below(summary, setting.ood / 100)
    part = Part(check.metric, summary.mean, *student_interval(summary, bounded=True, confidence=1 - claims.level))
    return CheckResult(check, setting, row, empty.rival, [part], 2 * p_below, 2 * (1 - p_below), len(values))


def share_p_below(summary: Summary, value: float) -> float:
    """One-sided p against "the mean share is at least `value`", Student's t on the logit scale."""
    from scipy.special import logit, stdtr

    if summary.std == 0 or not 0 < summary.mean < 1:
        return 0.0 if summary.mean < value else 1.0
    se = summary.std / summary.seeds**0.5 / (summary.mean * (1 - summary.mean))
    return float(stdtr(summary.seeds - 1, np.clip((logit(summary.mean) - logit(value)) / se, -1e6, 1e6)))
