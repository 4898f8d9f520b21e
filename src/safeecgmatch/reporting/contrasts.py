"""Paired differences and ranks of all cells, as aggregates: what verdicts are formed from.

Rows of one setting (dataset, OOD level) are named by keys: `calimatch` for a baseline's reported prediction;
`safeecgmatch@fused`, `safeecgmatch-no_cal@time`, `safeecgmatch-lambda_1/3@fused` for a prediction of SafeECGMatch, of a
variant or of another weight; `...#msp` for the unseen score 1 - max probability of the same prediction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from safeecgmatch.cells import Cell
from safeecgmatch.config import PROPOSED
from safeecgmatch.metrics import probabilities_of, scaled_log_probabilities
from safeecgmatch.predictions import branches_of, ood_score, reported_branch
from safeecgmatch.reporting.bootstrap import Resampler, auroc_draws, closed_set_draws
from safeecgmatch.reporting.names import higher_is_better
from safeecgmatch.reporting.results import weight_label
from safeecgmatch.reporting.statistics import paired_difference, probability_of_improvement, rank_distribution
from safeecgmatch.reporting.stored import StoredCell

SCALED = {"none": ("acc", "ece", "ace", "sce"), "posthoc": ("ece",)}  # a temperature leaves the accuracy as it is
RANKED = [(metric, scaling) for scaling, metrics in SCALED.items() for metric in metrics]
MEASURES = [*RANKED, ("auroc", "none")]
MSP = "#msp"
# Under which claims are read: two ways to the temperatures, two predictions. These are compared with every baseline.
READ_ROWS = [f"{PROPOSED}{variant}@{branch}" for variant in ("", "-learned_t") for branch in ("fused", "time")]
DIGITS = "%.6g"  # of the files: the last bits of a matrix product depend on the machine

CONTRAST_COLUMNS = [
    "dataset", "ood", "metric", "scaling", "candidate", "rival", "seeds", "records", "estimate", "se_seeds",
    "se_records", "low", "high", "poi",
]  # fmt: skip


def row_name(cell: Cell) -> str:
    """`calimatch`, `safeecgmatch`, `safeecgmatch-no_cal`, `safeecgmatch-lambda_1/3`."""
    if cell.stage_name == "train_sensitivity":
        return f"{cell.method}-lambda_{weight_label(float(cell.tag.removeprefix('lambda_')))}"
    return f"{cell.method}-{cell.tag}" if cell.tag else cell.method


@dataclass(frozen=True)
class Sample:
    """One measure of one run: its value, and its values over resampled test records; higher is better."""

    value: float
    draws: npt.NDArray[np.float64]
    records: int


Runs = dict[int, Sample]  # by seed
Rows = dict[str, dict[tuple[str, str], Runs]]  # by row key, then by (metric, scaling)


def resampler_of(dataset: str, stored: list[StoredCell]) -> Resampler:
    sets = ("test.record", "open_test.record")
    records = [member.predictions[name] for member in stored if member.cell.dataset == dataset for name in sets]
    return Resampler(dataset, np.unique(np.concatenate(records)))


def samples_of(
    stored: StoredCell, branch: str, resampler: Resampler, values: dict[tuple[str, str], float]
) -> Iterator[tuple[str, tuple[str, str], Sample]]:
    """Suffix of the row key, measure and sample of everything that one branch of a cell shows."""
    predictions = stored.predictions
    labels, weights = predictions["test.label"], resampler.weights(predictions["test.record"])
    for scaling, metrics in SCALED.items():
        temperature = values["temperature", scaling] if scaling == "posthoc" else 1.0
        scaled = scaled_log_probabilities(predictions[f"test.log_probs.{branch}"], temperature)
        draws = closed_set_draws(scaled, labels, weights)
        for metric in metrics:
            sign = 1.0 if higher_is_better(metric) else -1.0
            yield "", (metric, scaling), Sample(sign * values[metric, scaling], sign * draws[metric], labels.size)
    if ("auroc", "none") not in values:
        return
    log_probs = predictions[f"open_test.log_probs.{branch}"]
    unseen = predictions["open_test.label"] >= log_probs.shape[1]
    weights = resampler.weights(predictions["open_test.record"])
    scores = {"": ood_score(predictions, branch)}
    if f"open_test.ood_score.{branch}" in predictions:
        scores[MSP] = 1.0 - probabilities_of(log_probs).astype(np.float64).max(axis=1)
    for suffix, score in scores.items():
        value = float(auroc_draws(score, unseen, np.ones((unseen.size, 1)))[0])
        yield suffix, ("auroc", "none"), Sample(value, auroc_draws(score, unseen, weights), unseen.size)


def rows_by_setting(stored: list[StoredCell], metrics: pd.DataFrame) -> dict[tuple[str, int], Rows]:
    """The samples of every cell that has a result, by setting and row key; `metrics` are the rows of metrics.csv."""
    stored = [member for member in stored if member.counted and not member.diverged]
    found: dict[tuple[str, int], Rows] = {}
    resamplers = {name: resampler_of(name, stored) for name in dict.fromkeys(member.cell.dataset for member in stored)}
    keyed: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    columns = ["cell", "branch", "metric", "scaling", "value"]
    for path, name, metric, scaling, value in metrics[columns].itertuples(index=False):
        keyed.setdefault((path, name), {})[metric, scaling] = value
    for member in stored:
        cell = member.cell
        rows = found.setdefault((cell.dataset, cell.ood), {})
        own = cell.method == PROPOSED
        for branch in branches_of(member.predictions) if own else [reported_branch(member.predictions)]:
            key = f"{row_name(cell)}@{branch}" if own else cell.method
            samples = samples_of(member, branch, resamplers[cell.dataset], keyed[cell.path, branch])
            for suffix, measure, sample in samples:
                rows.setdefault(key + suffix, {}).setdefault(measure, {})[cell.seed] = sample
    return found


def wanted_pairs(keys: list[str]) -> list[tuple[str, str]]:
    """Which rows of a setting are compared: SafeECGMatch under each reading with every baseline and with its variants,
    every baseline with Supervised, every unseen score with the maximum probability."""
    plain = [key for key in keys if not key.endswith(MSP)]
    baselines = [key for key in plain if "@" not in key]
    own = [key for key in plain if "@" in key]
    pairs = [(key, rival) for key in own if key in READ_ROWS for rival in baselines]
    main = [key for key in own if key.startswith(f"{PROPOSED}@")]
    pairs += [(key, rival) for key in main for rival in own if rival not in main and _branch(rival) == _branch(key)]
    fused = f"{PROPOSED}@fused"
    pairs += [(fused, rival) for rival in main if fused in main and rival != fused]
    pairs += [(key, "supervised") for key in baselines if "supervised" in baselines and key != "supervised"]
    return pairs + [(key.removesuffix(MSP), key) for key in keys if key.endswith(MSP)]


def _branch(key: str) -> str:
    return key.split("@")[1]


def contrast_frame(settings: dict[tuple[str, int], Rows]) -> pd.DataFrame:
    """One line per setting, measure and pair with at least two common seeds; positive is better for the candidate."""
    lines: list[tuple[Any, ...]] = []
    for (dataset, ood), rows in settings.items():
        for candidate, rival in wanted_pairs(sorted(rows)):
            for measure in MEASURES:
                first, second = rows[candidate].get(measure, {}), rows[rival].get(measure, {})
                seeds = sorted(first.keys() & second.keys())
                if len(seeds) < 2:
                    continue
                a, b = [first[seed] for seed in seeds], [second[seed] for seed in seeds]
                values = [[sample.value for sample in side] for side in (a, b)]
                draws = [[sample.draws for sample in side] for side in (a, b)]
                difference = paired_difference(*values, *draws)
                line = (dataset, ood, *measure, candidate, rival, len(seeds), a[0].records, difference.estimate)
                spread = (difference.se_seeds, difference.se_records, *difference.interval())
                lines.append((*line, *spread, probability_of_improvement(*values)))
    return pd.DataFrame(lines, columns=CONTRAST_COLUMNS)


def rank_frame(settings: dict[tuple[str, int], Rows]) -> pd.DataFrame:
    """Rank distribution of SafeECGMatch under each reading, among the baselines that share two seeds or more."""
    lines: list[dict[str, Any]] = []
    for (dataset, ood), rows in settings.items():
        baselines = [key for key in sorted(rows) if "@" not in key and not key.endswith(MSP)]
        for own, measure in product(READ_ROWS, RANKED):
            mine = rows.get(own, {}).get(measure, {})
            others = [rows[key][measure] for key in baselines]
            runs = [mine, *(other for other in others if len(mine.keys() & other.keys()) > 1)]
            seeds = sorted(set(mine).intersection(*runs))
            if len(seeds) > 1 and len(runs) > 1:
                values = np.array([[run[seed].value for run in runs] for seed in seeds])
                draws = np.stack([[run[seed].draws for run in runs] for seed in seeds]).transpose(2, 0, 1)
                rng = np.random.default_rng(list(f"ranks {dataset} {ood} {own} {measure}".encode()))
                chances = rank_distribution(values, draws, 0, rng)
                lines.append(
                    {
                        "dataset": dataset,
                        "ood": ood,
                        "metric": measure[0],
                        "scaling": measure[1],
                        "row": own,
                        "methods": len(runs),
                        "seeds": len(seeds),
                        "top1": chances[0],
                        "top2": chances[:2].sum(),
                        "mean_rank": float(chances @ np.arange(1, len(runs) + 1)),
                        **{f"rank_{place}": chance for place, chance in enumerate(chances, start=1)},
                    }
                )
    columns = ["dataset", "ood", "metric", "scaling", "row", "methods", "seeds", "top1", "top2", "mean_rank"]
    return pd.DataFrame(lines) if lines else pd.DataFrame(columns=columns)
