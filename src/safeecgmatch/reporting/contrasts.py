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
from safeecgmatch.metrics import (
    FLOAT32_LOG_OF_ZERO,
    ece_debiased,
    ece_floor,
    probabilities_of,
    scaled_log_probabilities,
)
from safeecgmatch.predictions import (
    Arrays,
    branches_of,
    final_metrics,
    ood_score,
    own_best,
    predictions_at,
    reported_branch,
)
from safeecgmatch.reporting.bootstrap import RESAMPLINGS, auroc_draws, closed_set_draws, weights
from safeecgmatch.reporting.names import direction
from safeecgmatch.reporting.statistics import paired_difference, probability_of_improvement
from safeecgmatch.reporting.stored import StoredCell

SCALED = {"none": ("acc", "ece", "ace", "sce"), "posthoc": ("ece",)}  # a temperature leaves the accuracy as it is
MEASURES = [*((metric, scaling) for scaling, metrics in SCALED.items() for metric in metrics), ("auroc", "none")]
MSP, OWN = "#msp", "#own"
LEARNED = f"{PROPOSED}-learned_t"
# Under which claims are read: two ways to the temperatures, two predictions. These are compared with every baseline.
READ_ROWS = [f"{name}@{branch}" for name in (PROPOSED, LEARNED) for branch in ("fused", "time")]
DIGITS = "%.6g"  # of contrasts.csv: the last bits of a matrix product depend on the machine
DECIMALS = 5  # of resampled values, for the same reason
DRAWS = [f"draw{number}" for number in range(1, RESAMPLINGS + 1)]
DRAW_COLUMNS = ["dataset", "ood", "row", "seed", "key", "metric", "scaling", "records", "value", *DRAWS]

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


Measured = dict[tuple[str, str], float]  # by metric and scaling
Runs = dict[int, Sample]  # by seed
Rows = dict[str, dict[tuple[str, str], Runs]]  # by row key, then by (metric, scaling)


def measured(predictions: Arrays, branch: str) -> Measured:
    """What metrics.csv says about a branch: as it is, then divided by a temperature that is fitted on validation."""
    validation = np.maximum(predictions[f"validation.log_probs.{branch}"], FLOAT32_LOG_OF_ZERO)
    temperature = fit_temperature(validation, predictions["validation.label"])
    found: Measured = {}
    for scaling, divisor in (("none", 1.0), ("posthoc", temperature)):
        metrics = final_metrics(predictions, branch, divisor)
        values = probabilities_of(scaled_log_probabilities(predictions[f"test.log_probs.{branch}"], divisor))
        # How much of an ECE is the noise of so many records in so many bins.
        metrics |= {"ece_floor": ece_floor(values), "ece_debiased": ece_debiased(values, predictions["test.label"])}
        found |= {(metric, scaling): value for metric, value in metrics.items()}
    return found | {("temperature", "posthoc"): temperature}


def resampled(
    predictions: Arrays, branch: str, values: Measured
) -> Iterator[tuple[str, tuple[str, str], int, float, npt.NDArray[np.float64]]]:
    """Suffix of the row key, measure, number of records, value and draws of everything that one branch shows."""
    labels, shares = predictions["test.label"], weights(predictions["test.record"])
    for scaling, metrics in SCALED.items():
        temperature = values["temperature", scaling] if scaling == "posthoc" else 1.0
        scaled = scaled_log_probabilities(predictions[f"test.log_probs.{branch}"], temperature)
        draws = closed_set_draws(scaled, labels, shares)
        for metric in metrics:
            yield "", (metric, scaling), labels.size, values[metric, scaling], draws[metric]
    if ("auroc", "none") not in values:
        return
    log_probs = predictions[f"open_test.log_probs.{branch}"]
    unseen = predictions["open_test.label"] >= log_probs.shape[1]
    shares = weights(predictions["open_test.record"])
    scores = {"": ood_score(predictions, branch)}
    if f"open_test.ood_score.{branch}" in predictions:
        scores[MSP] = 1.0 - probabilities_of(log_probs).astype(np.float64).max(axis=1)
    for suffix, score in scores.items():
        value = float(auroc_draws(score, unseen, np.ones((unseen.size, 1)))[0])
        yield suffix, ("auroc", "none"), unseen.size, value, auroc_draws(score, unseen, shares)


def draw_frame(member: StoredCell, metrics: list[dict[str, Any]]) -> pd.DataFrame:
    """The resampled values of one cell, a line per row key and measure; `metrics` are its rows of metrics.csv."""
    if not member.counted:
        return pd.DataFrame(columns=DRAW_COLUMNS)
    cell, lines = member.cell, []
    own = cell.method == PROPOSED
    for branch in branches_of(member.predictions) if own else [reported_branch(member.predictions)]:
        values = {(line["metric"], line["scaling"]): line["value"] for line in metrics if line["branch"] == branch}
        key = f"{cell.row}@{branch}" if own else cell.row
        shown = {key: (member.predictions, values)}
        if key + OWN in (*placebo(""), *placebo("learned_")):
            epoch = own_best(member.predictions, member.trajectory, branch)
            chosen = predictions_at(member.predictions, member.trajectory, epoch)
            shown[key + OWN] = (chosen, measured(chosen, branch))
        for name, (predictions, known) in shown.items():
            for suffix, measure, records, value, draws in resampled(predictions, branch, known):
                named = (cell.dataset, cell.ood, cell.row, cell.seed, name + suffix, *measure, records, value)
                lines.append((*named, *np.round(draws, DECIMALS)))
    return pd.DataFrame(lines, columns=DRAW_COLUMNS)


def rows_by_setting(draws: pd.DataFrame) -> dict[tuple[str, int], Rows]:
    """The samples of every cell, by setting and row key."""
    found: dict[tuple[str, int], Rows] = {}
    columns = ["dataset", "ood", "key", "metric", "scaling", "seed", "value", "records"]
    values = draws[DRAWS].to_numpy(dtype=np.float64)
    for drawn, line in zip(values, draws[columns].itertuples(index=False), strict=True):
        dataset, ood, key, metric, scaling, seed, value, records = line
        sign = float(direction(metric))
        runs = found.setdefault((dataset, ood), {}).setdefault(key, {}).setdefault((metric, scaling), {})
        runs[seed] = Sample(sign * value, sign * drawn, records)
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
