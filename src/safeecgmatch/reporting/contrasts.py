"""Paired differences of all cells, as aggregates: what verdicts are formed from.

Rows of one setting (dataset, OOD level) are named by keys: `calimatch`, `calimatch-val150` for the reported prediction
of a baseline and of an arm; `safeecgmatch@fused`, `safeecgmatch-no_cal@time`, `safeecgmatch-lambda_1/3@fused` for a
prediction of SafeECGMatch, of a variant or of another weight; `...#msp` for the unseen score 1 - max probability of the
same prediction, `...#own` for a branch at its own best epoch instead of the run's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from safeecgmatch.config import PROPOSED
from safeecgmatch.methods.parts.temperature import fit_temperature
from safeecgmatch.metrics import FLOAT32_LOG_OF_ZERO, probabilities_of, scaled_log_probabilities
from safeecgmatch.predictions import (
    Arrays,
    branches_of,
    final_metrics,
    ood_score,
    own_best,
    predictions_at,
    reported_branch,
)
from safeecgmatch.reporting.bootstrap import Resampler, auroc_draws, closed_set_draws
from safeecgmatch.reporting.names import higher_is_better
from safeecgmatch.reporting.statistics import paired_difference, probability_of_improvement
from safeecgmatch.reporting.stored import StoredCell

SCALED = {"none": ("acc", "ece", "ace", "sce"), "posthoc": ("ece",)}  # a temperature leaves the accuracy as it is
MEASURES = [*((metric, scaling) for scaling, metrics in SCALED.items() for metric in metrics), ("auroc", "none")]
MSP, OWN = "#msp", "#own"
LEARNED = f"{PROPOSED}-learned_t"
# Under which claims are read: two ways to the temperatures, two predictions. These are compared with every baseline.
READ_ROWS = [f"{name}@{branch}" for name in (PROPOSED, LEARNED) for branch in ("fused", "time")]
DIGITS = "%.6g"  # of the files: the last bits of a matrix product depend on the machine

CONTRAST_COLUMNS = [
    "dataset", "ood", "metric", "scaling", "candidate", "rival", "seeds", "records", "estimate", "se_seeds",
    "se_records", "low", "high", "poi",
]  # fmt: skip


def placebo(rule: str) -> tuple[str, str]:
    """The same kind of branch twice in one run, second and first: what differs between them is noise."""
    return f"{PROPOSED}-{rule}two_time@freq{OWN}", f"{PROPOSED}-{rule}two_time@time{OWN}"


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


def measured(predictions: Arrays, branch: str) -> dict[tuple[str, str], float]:
    """What metrics.csv says about a branch, for predictions that are not in it."""
    validation = np.maximum(predictions[f"validation.log_probs.{branch}"], FLOAT32_LOG_OF_ZERO)
    temperature = fit_temperature(validation, predictions["validation.label"])
    plain, scaled = final_metrics(predictions, branch), final_metrics(predictions, branch, temperature)
    found = {(metric, "none"): value for metric, value in plain.items()}
    return found | {(m, "posthoc"): value for m, value in scaled.items()} | {("temperature", "posthoc"): temperature}


def samples_of(
    predictions: Arrays, branch: str, resampler: Resampler, values: dict[tuple[str, str], float]
) -> Iterator[tuple[str, tuple[str, str], Sample]]:
    """Suffix of the row key, measure and sample of everything that one branch of a cell shows."""
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
            key = f"{cell.row}@{branch}" if own else cell.row
            shown = {key: (member.predictions, keyed[cell.path, branch])}
            if key + OWN in (*placebo(""), *placebo("learned_")):
                epoch = own_best(member.predictions, member.trajectory, branch)
                chosen = predictions_at(member.predictions, member.trajectory, epoch)
                shown[key + OWN] = (chosen, measured(chosen, branch))
            for name, (predictions, values) in shown.items():
                for suffix, measure, sample in samples_of(predictions, branch, resamplers[cell.dataset], values):
                    rows.setdefault(name + suffix, {}).setdefault(measure, {})[cell.seed] = sample
    return found


def wanted_pairs(keys: list[str]) -> list[tuple[str, str]]:
    """Which rows of a setting are compared: SafeECGMatch under each reading with every baseline, with its own other
    branches and with its variants, every baseline with Supervised, every arm with its method, every unseen score with
    the maximum probability, and the placebos."""
    plain = [key for key in keys if "#" not in key]
    baselines = [key for key in plain if "@" not in key and "-" not in key]
    pairs = [(key, rival) for key in READ_ROWS if key in keys for rival in baselines]
    own = [tuple(key.split("@")) for key in plain if "@" in key]
    for name, branch in own:
        rivals = [other for other in own if _compared(name, other[0]) and other[1] == branch]
        if name in (PROPOSED, LEARNED) and branch == "fused":
            rivals += [other for other in own if other[0] == name and other[1] != branch]
        pairs += [(f"{name}@{branch}", "@".join(other)) for other in rivals]
    pairs += [(key, "supervised") for key in baselines if "supervised" in baselines and key != "supervised"]
    arms = [(key, key.partition("-")[0]) for key in plain if "@" not in key and "-" in key]
    scores = [(key.removesuffix(MSP), key) for key in keys if key.endswith(MSP) and OWN not in key]
    return pairs + [pair for pair in (*arms, *scores, placebo(""), placebo("learned_")) if {*pair} <= {*keys}]


def _compared(name: str, other: str) -> bool:
    """A variant differs from the main run or from `learned_t` in one thing; without calibration there is no rule."""
    learned = other.startswith(f"{PROPOSED}-learned_")
    if name == PROPOSED:
        return other != PROPOSED and (not learned or other == LEARNED)
    return name == LEARNED and other != LEARNED and (learned or other == f"{PROPOSED}-no_cal")


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
