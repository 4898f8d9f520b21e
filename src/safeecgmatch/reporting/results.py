"""Values of metrics.csv and contrasts.csv by meaning: of which row, which branch, over which seeds."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import pandas as pd

from safeecgmatch.reporting.names import bounds, higher_is_better
from safeecgmatch.reporting.statistics import TIE, Summary, distinct, student_interval, summarise

REPORTED = ""  # stands for the branch that the method reports by default


@dataclass(frozen=True)
class RunsOf:
    """Which runs a line of a table stands for: the columns `row` and `ood` of metrics.csv, and a branch."""

    row: str
    ood: int
    branch: str = REPORTED


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


@dataclass(frozen=True)
class Gain(SeedMean):
    """A paired difference with its interval, both from contrasts.csv; positive is better for the first row."""

    low: float = math.nan
    high: float = math.nan

    @property
    def interval(self) -> tuple[float, float]:
        return self.low, self.high


class Results:
    """The counted rows of metrics.csv, indexed once, the seeds that runs.csv asks for, and the paired differences."""

    def __init__(self, metrics: pd.DataFrame, runs: pd.DataFrame, contrasts: pd.DataFrame | None = None) -> None:
        self._values: dict[tuple, dict[int, float]] = defaultdict(dict)
        self._asked: dict[tuple, set[int]] = defaultdict(set)
        self.branches: dict[str, list[str]] = defaultdict(list)  # by row
        self.reported: dict[str, str] = {}  # branch by row, that of the last run
        for dataset, row, ood, seed in runs[["dataset", "row", "ood", "seed"]].itertuples(index=False):
            self._asked[dataset, row, ood].add(int(seed))
        columns = ["dataset", "row", "ood", "branch", "scaling", "metric", "reported", "seed", "value"]
        for line in metrics.loc[metrics["counted"], columns].itertuples(index=False):
            dataset, row, ood, branch, scaling, metric, reported, seed, value = line
            for name in [branch, REPORTED] if reported else [branch]:
                self._values[dataset, row, ood, name, scaling, metric][int(seed)] = float(value)
            if scaling == "none" and branch not in self.branches[row]:
                self.branches[row].append(branch)
            if scaling == "none" and reported:
                self.reported[row] = branch
        self._gains: dict[tuple, tuple[float, float, float, int]] = {}
        columns = ["dataset", "ood", "metric", "scaling", "candidate", "rival", "estimate", "low", "high", "seeds"]
        for *key, estimate, low, high, seeds in () if contrasts is None else contrasts[columns].itertuples(index=False):
            *measure, candidate, rival = key
            self._gains[*measure, candidate, rival] = (estimate, low, high, seeds)
            self._gains[*measure, rival, candidate] = (-estimate, -high, -low, seeds)

    def by_seed(self, dataset: str, chosen: RunsOf, metric: str, scaling: str = "none") -> dict[int, float]:
        """In the order in which params.yaml lists the seeds."""
        return self._values.get((dataset, chosen.row, chosen.ood, chosen.branch, scaling, metric), {})

    def value(self, dataset: str, chosen: RunsOf, metric: str, scaling: str = "none") -> SeedMean:
        values = list(self.by_seed(dataset, chosen, metric, scaling).values())
        expected = len(self._asked.get((dataset, chosen.row, chosen.ood), {})) or len(values)
        return SeedMean(summarise(values) if values else None, expected, bounded=bounds(metric) == (0, 1))

    def gain(self, dataset: str, ood: int, pair: tuple[str, str], metric: str, scaling: str = "none") -> Gain:
        """Of the first row of contrasts.csv over the second, whichever way round the file has them."""
        if (dataset, ood, metric, scaling, *pair) not in self._gains:
            return Gain(None, 0)
        estimate, low, high, seeds = self._gains[dataset, ood, metric, scaling, *pair]
        return Gain(Summary(estimate, math.nan, seeds), seeds, low=low, high=high)


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
