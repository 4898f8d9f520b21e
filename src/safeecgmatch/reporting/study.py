"""What `evaluate` wrote about a study, and what tables, figures and verdicts look up in it.

A row is named as in contrasts.csv and plots/: `calimatch` is the prediction that the method reports,
`safeecgmatch-learned_t@time` that of a branch, and `a - b` the gain of row a over row b.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.errors import DamagedFile, UserError
from safeecgmatch.files import read_json
from safeecgmatch.profiles import compose_params, profile_names
from safeecgmatch.reporting.names import bounds, data_name, is_generated, source_names
from safeecgmatch.reporting.statistics import Difference, Summary, student_interval

TRAINING = "training"  # in the column `scaling`: what happened while a cell was trained
OVER = " - "  # between the two rows of a gain
VALUE = ["dataset", "row", "ood", "metric", "scaling"]  # what one printed number is of
FRAMES = {  # with the columns that are looked up
    "metrics": [*VALUE, "seed", "branch", "value", "reported", "counted", "config_hash"],
    "runs": ["cell", "dataset", "row", "ood", "seed", "state", "config_hash"],
    "contrasts": [
        *("dataset", "ood", "candidate", "rival", "metric", "scaling", "seeds", "records"),
        *("estimate", "se_seeds", "se_records", "low", "high"),
    ],
}
PLOTS = ("corpus", "sources", "budget", "training", "reliability", "roc", "refusal", "confusion")


class Printed(NamedTuple):
    """One cell of a table; a gain has no spread, and what nobody ran no seeds."""

    mean: float = math.nan
    std: float = math.nan
    interval_low: float = math.nan
    interval_high: float = math.nan
    seeds: int = 0
    seeds_asked: int = 0


class Gain(NamedTuple):
    """A paired difference with its 95 % interval, positive where the first row is better, and its test records."""

    difference: Difference
    low: float
    high: float
    records: int

    @property
    def turned(self) -> Gain:
        return Gain(self.difference.turned, -self.high, -self.low, self.records)


@dataclass(frozen=True)
class Study:
    """All that tables, figures and verdicts are made of; no frame has a line per record. `draws` is read by nobody but
    the next `evaluate`."""

    params: Params
    metrics: pd.DataFrame
    runs: pd.DataFrame
    contrasts: pd.DataFrame
    plots: dict[str, pd.DataFrame] = field(default_factory=dict)
    draws: pd.DataFrame = field(default_factory=pd.DataFrame)

    @cached_property
    def by_seed(self) -> pd.DataFrame:
        """What counts: a line per value, a column per seed."""
        counted = self.metrics[self.metrics["counted"]]
        of_branches = counted.assign(row=counted["row"] + "@" + counted["branch"])
        named = pd.concat([counted[counted["reported"]], of_branches])
        return named.pivot(index=VALUE, columns="seed", values="value")

    @cached_property
    def _values(self) -> dict[Any, Summary]:
        seeds = self.by_seed
        parts = (seeds.mean(axis=1), seeds.std(axis=1, ddof=1), seeds.count(axis=1))
        return {key: Summary(*line) for key, *line in zip(seeds.index, *(part.tolist() for part in parts), strict=True)}

    @cached_property
    def _gains(self) -> dict[Any, Gain]:
        return {
            (line.dataset, f"{line.candidate}{OVER}{line.rival}", line.ood, line.metric, line.scaling): Gain(
                Difference(line.estimate, line.se_seeds, line.se_records, line.seeds), line.low, line.high, line.records
            )
            for line in records(self.contrasts)
        }

    @cached_property
    def _asked(self) -> dict[Any, int]:
        return self.runs.groupby(["dataset", "row", "ood"])["seed"].nunique().to_dict()

    @cached_property
    def _predicted(self) -> pd.DataFrame:
        return self.metrics[self.metrics["counted"] & (self.metrics["scaling"] == "none")]

    @cached_property
    def branches(self) -> dict[str, list[str]]:
        """By row."""
        by_row = self._predicted.groupby("row", sort=False)["branch"]
        return {str(row): names.unique().tolist() for row, names in by_row}

    @property
    def reported(self) -> str:
        """Which prediction of SafeECGMatch, which the protocol decides; empty before its first run."""
        own = self._predicted[self._predicted["reported"] & (self._predicted["row"] == PROPOSED)]
        return own["branch"].iloc[-1] if len(own) else ""

    def seeds(self, dataset: str, row: str, ood: int, metric: str, scaling: str = "none") -> dict[int, float]:
        key: Any = (dataset, row, ood, metric, scaling)
        return self.by_seed.loc[key].dropna().to_dict() if key in self.by_seed.index else {}

    def value(self, dataset: str, row: str, ood: int, metric: str, scaling: str = "none") -> Summary | None:
        return self._values.get((dataset, row, ood, metric, scaling))

    def gain(self, dataset: str, row: str, ood: int, metric: str, scaling: str = "none") -> Gain | None:
        """Of `a - b`, whichever way round contrasts.csv has the two."""
        if found := self._gains.get((dataset, row, ood, metric, scaling)):
            return found
        other = self._gains.get((dataset, OVER.join(reversed(row.split(OVER))), ood, metric, scaling))
        return other and other.turned

    def printed(self, dataset: str, row: str, ood: int, metric: str, scaling: str) -> Printed:
        if OVER in row:
            gain = self.gain(dataset, row, ood, metric, scaling)
            seeds = gain.difference.seeds if gain else 0
            return Printed(gain.difference.estimate, math.nan, gain.low, gain.high, seeds, seeds) if gain else Printed()
        found = self.value(dataset, row, ood, metric, scaling) or Summary(math.nan, math.nan, 0)
        asked = self._asked.get((dataset, row.partition("@")[0], ood), found.seeds)
        interval = student_interval(found, bounds(metric) == (0, 1))
        return Printed(found.mean, found.std, *interval, found.seeds, asked)


def records(frame: pd.DataFrame) -> Any:
    """The lines of a frame, their columns as attributes."""
    return frame.itertuples(index=False)


@dataclass(frozen=True)
class Where:
    """A dataset and an OOD level, as pages and figures name them."""

    dataset: str
    ood: int
    data: str
    real: bool  # not generated

    @property
    def title(self) -> str:
        return f"{self.data}, {self.ood} % OOD"

    @property
    def ending(self) -> str:
        return f"{self.dataset}_{self.ood}"

    def rows_of(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame[(frame["dataset"] == self.dataset) & (frame["ood"] == self.ood)]

    def by_row(self, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
        return {str(row): lines for row, lines in self.rows_of(frame).groupby("row", sort=False)}


def places(params: Params) -> list[Where]:
    return [
        Where(dataset, ood, data_name(params, dataset).name, not is_generated(params, dataset))
        for dataset in params.grid.datasets
        for ood in params.grid.ood_levels
    ]


def sources_of(corpus: pd.DataFrame, dataset: str) -> list[str]:
    """Of its records, the largest first."""
    here = corpus[corpus["dataset"] == dataset]
    return here.groupby("source")["records"].sum().sort_values(ascending=False, kind="stable").index.tolist()


def with_corpora(params: Params, corpus: pd.DataFrame) -> Params:
    """The params of a report: a dataset of real records from fewer sources than it has is named with its corpus."""
    sources = {}
    for dataset in params.datasets():
        source, known = params.data.source(dataset), source_names(dataset)
        found = [known.get(name, name) for name in sources_of(corpus, dataset)]
        if source.source != "phantom" and found and len(found) < len(known):
            source = source.model_copy(update={"corpus": found})
        sources[dataset] = source
    return params.model_copy(update={"data": params.data.model_copy(update=sources)})


def report_folder(params: Params) -> Path:
    return Path("reports") / params.profile / params.protocol


def read_frame(file: Path, columns: Sequence[str] = ("dataset",)) -> pd.DataFrame:
    """A CSV of a report, which has at least these columns."""
    try:
        frame = pd.read_csv(file)
    except ValueError as error:  # of pandas: empty, or no table at all
        raise DamagedFile(file, error) from error
    if lacking := [name for name in columns if name not in frame]:
        raise DamagedFile(file, f"no column {', '.join(lacking)}")
    return frame


def read_study(params: Params, folder: Path) -> Study:
    """What a report's folder says; the params name the corpora."""

    def read(name: str) -> pd.DataFrame:
        file = folder / f"{name}.csv"
        if not file.is_file():
            raise UserError(f"{file} does not exist; run `dvc repro evaluate` or `safeecgmatch report` first.")
        return read_frame(file, FRAMES.get(name, ("dataset",)))

    frames, plots = {name: read(name) for name in FRAMES}, {name: read(f"plots/{name}") for name in PLOTS}
    return Study(with_corpora(params, plots["corpus"]), **frames, plots=plots)


def is_real(params: Params) -> bool:
    return not all(is_generated(params, dataset) for dataset in params.grid.datasets)


def cells_done(params: Params) -> int:
    """How many cells a study's report rests on; none where it has no report."""
    file = report_folder(params) / "headline.json"
    return read_json(file)["cells"]["done"] if file.is_file() else 0


def choose(current: Params, name: str | None = None) -> Params:
    """The params of the study called `name`, of those that have a report. Without a name those of params.yaml,
    `current`; but if its data are generated, those of the largest report on real data, if there is one."""
    if name == current.profile or (name is None and is_real(current)):
        return current
    known = {known: compose_params(known) for known in profile_names() if Path("reports", known).is_dir()}
    others = {known: params for known, params in known.items() if cells_done(params)}
    if name is None:
        return max(filter(is_real, others.values()), key=cells_done, default=current)
    if name not in others:
        raise UserError(f"There is no report of a study '{name}'; those that exist are {', '.join(others) or 'none'}.")
    return others[name]
