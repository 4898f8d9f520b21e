"""Values of the tidy metrics frame by meaning: which seeds, which branch, which lambda_sum."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import pandas as pd

from safeecgmatch.reporting.names import higher_is_better
from safeecgmatch.reporting.statistics import Summary, summarise, t_interval

REPORTED = ""  # stands for the branch that the method reports by default
THIRD = 1 / 3


def same_weight(value: float, wanted: float) -> bool:
    """Equal values of lambda_sum; a third may be written with three digits."""
    return math.isclose(value, wanted, rel_tol=0, abs_tol=1e-3 if math.isclose(wanted, THIRD, abs_tol=1e-3) else 1e-9)


def weight_label(value: float) -> str:
    return "1/3" if same_weight(value, THIRD) else f"{value:g}"


@dataclass(frozen=True)
class Selection:
    """Which runs a row of a table stands for; `lambda_sum` None for methods that have none."""

    method: str
    ood: int
    variant: str = "full"
    lambda_sum: float | None = None
    branch: str = REPORTED


@dataclass(frozen=True)
class Entry:
    """Mean over the seeds that exist, of those that the grid asks for; None where there is no seed at all."""

    summary: Summary | None
    expected: int
    mark: str = ""
    merged: bool = False

    @property
    def incomplete(self) -> bool:
        return self.summary is not None and self.summary.seeds < self.expected

    @property
    def interval(self) -> tuple[float, float]:
        return t_interval(self.summary) if self.summary else (math.nan, math.nan)


class Results:
    """The counted rows of metrics.csv, indexed once."""

    def __init__(self, metrics: pd.DataFrame, seeds: list[int]) -> None:
        self.seeds = seeds
        self._values: dict[tuple, list[tuple[float | None, int, float]]] = defaultdict(list)
        self.branches: dict[str, list[str]] = defaultdict(list)
        wanted = ["dataset", "method", "ood", "variant", "branch", "scaling", "metric"]
        counted = metrics[metrics["counted"]]
        extra = zip(counted["reported"], counted["lambda_sum"], counted["seed"], counted["value"], strict=True)
        keys = zip(*(counted[column] for column in wanted), strict=True)
        for key, (reported, weight, seed, value) in zip(keys, extra, strict=True):
            item = (None if pd.isna(weight) else float(weight), int(seed), float(value))
            dataset, method, ood, variant, branch, scaling, metric = key
            for name in [branch, REPORTED] if reported else [branch]:
                self._values[dataset, method, ood, variant, name, scaling, metric].append(item)
            if branch not in self.branches[method]:
                self.branches[method].append(branch)

    def by_seed(self, dataset: str, selection: Selection, metric: str, scaling: str = "none") -> dict[int, float]:
        """Value per seed. A seed counts once, even where a main run and a sensitivity run share its lambda_sum."""
        key = (dataset, selection.method, selection.ood, selection.variant, selection.branch, scaling, metric)
        found: dict[int, float] = {}
        for weight, seed, value in self._values.get(key, []):
            wanted = selection.lambda_sum
            if wanted is None or (weight is not None and same_weight(weight, wanted)):
                found.setdefault(seed, value)
        return {seed: found[seed] for seed in self.seeds if seed in found}

    def entry(self, dataset: str, selection: Selection, metric: str, scaling: str = "none") -> Entry:
        values = list(self.by_seed(dataset, selection, metric, scaling).values())
        return Entry(summarise(values) if values else None, len(self.seeds))


def marks(entries: list[Entry], metric: str) -> list[str]:
    """`best` for the best unrounded mean, `second` for the next different one; equal means share a mark."""
    means = [entry.summary.mean for entry in entries if entry.summary is not None]
    ranked = sorted(set(means), reverse=higher_is_better(metric))
    names = dict(zip(ranked, ("best", "second"), strict=False))
    return [names.get(entry.summary.mean, "") if entry.summary else "" for entry in entries]
