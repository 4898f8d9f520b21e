"""Means over the seeds, from metrics.csv, and paired gains, from contrasts.csv, by the name of a row.

A row is named as in contrasts.csv and plots/: `calimatch` is the prediction that the method reports,
`safeecgmatch-learned_t@time` that of a branch, and `a - b` the gain of row a over row b.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from safeecgmatch.reporting.names import bounds
from safeecgmatch.reporting.statistics import Summary, student_interval

VALUE = ["dataset", "row", "ood", "metric", "scaling"]  # what one printed number is of
SETTING = ["dataset", "row", "ood"]
OVER = " - "  # between the two rows of a gain


class Gain(NamedTuple):
    """A paired difference with its interval; positive is better for the first row."""

    mean: float
    low: float
    high: float


class Results:
    """All that tables and figures print; what is not there has no seeds."""

    def __init__(self, metrics: pd.DataFrame, runs: pd.DataFrame, contrasts: pd.DataFrame | None = None) -> None:
        counted = metrics[metrics["counted"]]
        of_branches = counted.assign(row=counted["row"] + "@" + counted["branch"])
        named = pd.concat([counted[counted["reported"]], of_branches])
        self._by_seed = named.pivot(index=VALUE, columns="seed", values="value")
        summaries = pd.DataFrame(
            {
                "mean": self._by_seed.mean(axis=1),
                "std": self._by_seed.std(axis=1, ddof=1),
                "seeds": self._by_seed.count(axis=1),
            }
        )
        self._found = pd.concat([summaries, _both_ways(contrasts)]) if contrasts is not None else summaries
        self._asked = runs.groupby(SETTING)["seed"].nunique()
        plain = counted[counted["scaling"] == "none"]
        self.branches = plain.groupby("row", sort=False)["branch"].unique().map(list).to_dict()
        self.reported = plain[plain["reported"]].groupby("row")["branch"].last().to_dict()  # by row

    def values_of(self, wanted: pd.DataFrame) -> pd.DataFrame:
        """The columns `VALUE` of `wanted`, each line with its mean, spread, interval, seeds and seeds asked for."""
        found = self._found.reindex(pd.MultiIndex.from_frame(wanted[VALUE])).reset_index()
        found["seeds"] = found["seeds"].fillna(0).astype(int)
        trained = found["row"].str.split("@").str[0].mask(found["row"].str.contains(OVER))  # a gain is of two rows
        asked = self._asked.reindex(pd.MultiIndex.from_frame(found.assign(row=trained)[SETTING])).to_numpy()
        found["seeds_asked"] = pd.Series(asked, found.index).fillna(found["seeds"]).astype(int)
        intervals = [
            (line.low, line.high)
            if OVER in line.row
            else student_interval(Summary(line.mean, line.std, line.seeds), bounds(line.metric) == (0, 1))
            for line in records(found)
        ]
        found[["interval_low", "interval_high"]] = np.array(intervals, dtype=float).reshape(-1, 2)
        return found

    def seeds_of(self, wanted: pd.DataFrame) -> pd.DataFrame:
        """The columns `VALUE` of `wanted` as index, a column for each seed."""
        return self._by_seed.reindex(pd.MultiIndex.from_frame(wanted[VALUE]))

    def by_seed(self, dataset: str, row: str, ood: int, metric: str, scaling: str = "none") -> dict[int, float]:
        key: Any = (dataset, row, ood, metric, scaling)
        if key not in self._by_seed.index:
            return {}
        return {int(seed): float(value) for seed, value in self._by_seed.loc[key].dropna().items()}

    def value(self, dataset: str, row: str, ood: int, metric: str, scaling: str = "none") -> Summary | None:
        key: Any = (dataset, row, ood, metric, scaling)
        if key not in self._found.index:
            return None
        found = self._found.loc[key]
        return Summary(float(found["mean"]), float(found["std"]), int(found["seeds"]))

    def gain(self, dataset: str, row: str, ood: int, metric: str, scaling: str = "none") -> Gain | None:
        """Of `a - b`, whichever way round contrasts.csv has the two."""
        key: Any = (dataset, row, ood, metric, scaling)
        return Gain(*self._found.loc[key, ["mean", "low", "high"]]) if key in self._found.index else None


def records(frame: pd.DataFrame) -> Iterator[Any]:
    """The lines of a frame, their columns as attributes."""
    return iter(frame.itertuples(index=False))


def _both_ways(contrasts: pd.DataFrame) -> pd.DataFrame:
    """The gains of contrasts.csv, and the same with the two rows in the other order."""
    turned = contrasts.rename(columns={"candidate": "rival", "rival": "candidate", "low": "high", "high": "low"})
    turned[["estimate", "low", "high"]] *= -1
    both = pd.concat([contrasts, turned]).rename(columns={"estimate": "mean"})
    both["row"] = both["candidate"] + OVER + both["rival"]
    gains = both.set_index(VALUE)[["mean", "low", "high", "seeds"]]
    return gains[~gains.index.duplicated()]
