"""Values of the tidy metrics frame by meaning: which seeds, which branch, which lambda_sum."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import pandas as pd

from safeecgmatch.config import PROPOSED
from safeecgmatch.reporting.names import higher_is_better
from safeecgmatch.reporting.statistics import TIE, Summary, distinct, student_interval, summarise

REPORTED = ""  # stands for the branch that the method reports by default
THIRD = 1 / 3
UNBOUNDED = ("nll", "brier", "temperature", "t_class", "t_ova", "t_class_second", "t_ova_second")


def same_weight(value: float, wanted: float) -> bool:
    """Equal values of lambda_sum; a third may be written with three digits."""
    return math.isclose(value, wanted, rel_tol=0, abs_tol=1e-3 if math.isclose(wanted, THIRD, abs_tol=1e-3) else 1e-9)


def weight_label(value: float) -> str:
    return "1/3" if same_weight(value, THIRD) else f"{value:g}"


@dataclass(frozen=True)
class RunsOf:
    """Which runs a row of a table stands for; `lambda_sum` None for methods that have none."""

    method: str
    ood: int
    variant: str = "full"
    lambda_sum: float | None = None
    branch: str = REPORTED

    def has_weight(self, weight: float | None) -> bool:
        wanted = self.lambda_sum
        return wanted is None or (weight is not None and same_weight(weight, wanted))


@dataclass(frozen=True)
class SeedMean:
    """Mean over the seeds that exist, of those that the grid asks for; None where there is no seed at all."""

    summary: Summary | None
    expected: int
    mark: str = ""
    merged: bool = False
    bounded: bool = True  # to [0, 1]

    @property
    def incomplete(self) -> bool:
        return self.summary is not None and self.summary.seeds < self.expected

    @property
    def interval(self) -> tuple[float, float]:
        return student_interval(self.summary, self.bounded) if self.summary else (math.nan, math.nan)


class Results:
    """The counted rows of metrics.csv, indexed once, and the seeds that runs.csv asks for."""

    def __init__(self, metrics: pd.DataFrame, runs: pd.DataFrame) -> None:
        self._values: dict[tuple, list[tuple[float | None, int, float]]] = defaultdict(list)
        self._asked: dict[tuple, list[tuple[float | None, int]]] = defaultdict(list)
        self.branches: dict[str, list[str]] = defaultdict(list)
        self._proposed = ""
        wanted = ["dataset", "method", "ood", "variant"]
        for *key, weight, seed in runs[[*wanted, "lambda_sum", "seed"]].itertuples(index=False):
            self._asked[tuple(key)].append((_weight(weight), int(seed)))
        counted = metrics[metrics["counted"]]
        columns = [*wanted, "branch", "scaling", "metric", "reported", "lambda_sum", "seed", "value"]
        for row in counted[columns].itertuples(index=False):
            *runs_of, branch, scaling, metric, reported, weight, seed, value = row
            for name in [branch, REPORTED] if reported else [branch]:
                self._values[*runs_of, name, scaling, metric].append((_weight(weight), int(seed), float(value)))
            if scaling == "none" and branch not in self.branches[str(runs_of[1])]:
                self.branches[str(runs_of[1])].append(branch)
            if scaling == "none" and reported and runs_of[1] == PROPOSED:
                self._proposed = branch

    def reported_branch(self) -> str:
        """That of SafeECGMatch, which the protocol decides; empty before its first run."""
        return self._proposed

    def seeds(self, dataset: str, chosen: RunsOf) -> list[int]:
        """The seeds asked for, in their order."""
        asked = self._asked.get((dataset, chosen.method, chosen.ood, chosen.variant), [])
        return list(dict.fromkeys(seed for weight, seed in asked if chosen.has_weight(weight)))

    def by_seed(self, dataset: str, chosen: RunsOf, metric: str, scaling: str = "none") -> dict[int, float]:
        """Value per seed. A seed counts once, even where a main run and a sensitivity run share its lambda_sum."""
        key = (dataset, chosen.method, chosen.ood, chosen.variant, chosen.branch, scaling, metric)
        found: dict[int, float] = {}
        for weight, seed, value in self._values.get(key, []):
            if chosen.has_weight(weight):
                found.setdefault(seed, value)
        return {seed: found[seed] for seed in self.seeds(dataset, chosen) if seed in found}

    def value(self, dataset: str, chosen: RunsOf, metric: str, scaling: str = "none") -> SeedMean:
        values = list(self.by_seed(dataset, chosen, metric, scaling).values())
        expected = len(self.seeds(dataset, chosen))
        return SeedMean(summarise(values) if values else None, expected, bounded=metric not in UNBOUNDED)


def _weight(value: float | None) -> float | None:
    return None if value is None or pd.isna(value) else float(value)


def tied(first: float, second: float) -> bool:
    """Means that differ by the rounding of their sums only."""
    return math.isclose(first, second, rel_tol=0, abs_tol=TIE)


def marks(values: list[SeedMean], metric: str) -> list[str]:
    """`best` for the best unrounded mean, `second` for the next that is no tie with it; ties share a mark."""
    means = [value.summary.mean for value in values if value.summary is not None]
    ranked = distinct(means, higher_is_better(metric))

    def mark(mean: float) -> str:
        return next((name for top, name in zip(ranked, ("best", "second"), strict=False) if tied(mean, top)), "")

    return [mark(value.summary.mean) if value.summary else "" for value in values]
