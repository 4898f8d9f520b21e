"""The paper's own numbers; published.yaml holds them as printed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from safeecgmatch.files import read_yaml
from safeecgmatch.reporting.statistics import Summary

MERGED_LEVELS = (30, 60)
ROUNDING = 0.0005  # of a number printed with three decimals


@dataclass(frozen=True)
class PublishedCell:
    """One printed mean ± std. `row` is a method, an ablation variant or a value of lambda_sum ("1/3", "1", "3")."""

    row: str
    mean: float
    std: float
    mark: str
    merged: bool
    ddof: int
    seeds: int

    @property
    def summary(self) -> Summary:
        """Mean, sample std and seeds; a population std is rescaled to what the sample std must have been."""
        sample_std = self.std * (self.seeds / (self.seeds - 1)) ** 0.5 if self.ddof == 0 else self.std
        return Summary(self.mean, sample_std, self.seeds)


@cache
def _content() -> dict[str, Any]:
    return read_yaml(Path(__file__).with_name("published.yaml"))


def published_labels() -> dict[str, dict[str, int]]:
    """By dataset, how many labels the paper trains with, and how many it validates with."""
    return _content()["labels"]


@cache
def published(table: str) -> dict[tuple[str, str, int, str], PublishedCell]:
    """The cells of one table by (dataset, row, OOD level, metric); a merged cell is there once per OOD level."""
    section, seeds = _content()[table], _content()["seeds"]
    return {
        (dataset, row, ood, metric): PublishedCell(
            row, mean, std, "".join(mark), level == "both", section["ddof"], seeds
        )
        for dataset, rows in section["cells"].items()
        for row, levels in rows.items()
        for level, metrics in levels.items()
        for ood in (MERGED_LEVELS if level == "both" else (level,))
        for metric, (mean, std, *mark) in metrics.items()
    }


def published_frame(table: str) -> pd.DataFrame:
    """The same with a line for each cell; the row is in the column `published`, as in the tables of this study."""
    lines = [(*key, cell.mean, cell.std, cell.summary.std, cell.seeds) for key, cell in published(table).items()]
    columns = ["dataset", "published", "ood", "metric", "paper_mean", "paper_std", "paper_sample_std", "paper_seeds"]
    return pd.DataFrame(lines, columns=columns)


def benchmark_methods() -> list[str]:
    """The 12 methods of Table 3: places are counted among these, whatever else a study has."""
    return list(dict.fromkeys(row for _, row, _, _ in published("benchmark")))
