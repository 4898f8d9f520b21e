"""Studies with a known truth: samples of runs drawn from planted means, without any training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from safeecgmatch.config import Params
from safeecgmatch.reporting.claims import Claims, load_claims
from safeecgmatch.reporting.contrasts import MEASURES, READ_ROWS, Rows, Sample, contrast_frame
from safeecgmatch.reporting.evaluate import METRIC_COLUMNS
from safeecgmatch.reporting.names import higher_is_better
from safeecgmatch.reporting.published import published
from safeecgmatch.reporting.study import Study
from tests.reporting.synthetic import BASELINES, paper_params

RESAMPLINGS = 200
ROWS = [*BASELINES, *READ_ROWS]
TAGS = (
    "no_freq_cal", "learned_no_freq_cal", "no_cal", "two_time", "learned_two_time", "lambda_1/3", "lambda_3", "val150",
)  # fmt: skip
OTHERS = [  # that claims are decided by besides
    *(f"safeecgmatch-{tag}@{branch}" for tag in TAGS for branch in ("fused", "time")),
    *(f"{name}@freq" for name in ("safeecgmatch", "safeecgmatch-learned_t")),
    *(f"{row}#msp" for row in READ_ROWS),
    *("fixmatch-seen_pool", "fixmatch-val150", "calimatch-seen_pool", "calimatch-val150"),
]
SETTINGS = [(dataset, ood) for dataset in ("ptbxl", "cinc21") for ood in (30, 60)]

CLAIMS = load_claims()

Gains = Mapping[str, float | Mapping[str, float]]  # by row: of all metrics, or by metric; higher is better


def only(*names: str) -> Claims:
    """The rules of these claims alone, so that none is corrected for the others."""
    return CLAIMS.model_copy(update={"claims": {name: CLAIMS.claims[name] for name in names}})


def planted_rows(
    rng: np.random.Generator, gains: Gains, rows: Iterable[str], seeds: int, of_seeds: float, of_records: float
) -> Rows:
    """Every measure of every row: 0.7, its gain, the seed's own noise, and noise of records that all seeds share."""
    found: Rows = {}
    for row in rows:
        gain = gains.get(row, 0.0)
        for measure in MEASURES:
            mean = 0.7 + (gain if isinstance(gain, float) else gain.get(measure[0], 0.0))
            shared = of_records * rng.normal(size=RESAMPLINGS)
            values = mean + of_records * rng.normal() + of_seeds * rng.normal(size=seeds)
            runs = {seed: Sample(float(value), value + shared, 1331) for seed, value in enumerate(values, start=1)}
            found.setdefault(row, {})[measure] = runs
    return found


def printed_rows(rng: np.random.Generator, dataset: str, ood: int, seeds: int = 3) -> Rows:
    """Runs for which Table 3 is the truth: its means and spreads, and nothing shared between methods."""
    found: Rows = {}
    for (where, method, level, metric), cell in published("benchmark").items():
        sign = 1 if higher_is_better(metric) else -1
        row = "safeecgmatch@fused" if method == "safeecgmatch" else method
        for measure in MEASURES:
            if (where, level, measure[0]) == (dataset, ood, metric):
                values = sign * rng.normal(cell.mean, cell.std, seeds)
                runs = {seed: Sample(value, np.full(2, value), 1331) for seed, value in enumerate(values, start=1)}
                found.setdefault(row, {})[measure] = runs
    return found


def purity_metrics(values: Mapping[tuple[str, int], list[float]]) -> pd.DataFrame:
    """Rows of metrics.csv that say how many accepted records were unseen, one per seed."""
    lines: list[dict[str, Any]] = [
        {
            "dataset": dataset, "method": "safeecgmatch", "ood": ood, "seed": seed, "variant": variant, "branch": "all",
            "scaling": "training", "metric": "accepted_unseen", "value": value, "reported": True, "counted": True,
            "row": f"safeecgmatch{'-learned_t' * (variant == 'learned_t')}",
        }
        for (dataset, ood), shares in values.items()
        for seed, value in enumerate(shares, start=1)
        for variant in ("full", "learned_t")
    ]  # fmt: skip
    frame = pd.DataFrame(lines, columns=METRIC_COLUMNS)
    return frame.astype({"counted": bool, "reported": bool})


def planted_study(
    rng: np.random.Generator,
    gains: Gains,
    rows: Iterable[str] = ROWS,
    settings: Iterable[tuple[str, int]] = SETTINGS,
    seeds: int = 3,
    of_seeds: float = 0.004,
    of_records: float = 0.002,
    params: Params | None = None,
    purity: Mapping[tuple[str, int], list[float]] | None = None,
) -> Study:
    drawn = {setting: planted_rows(rng, gains, rows, seeds, of_seeds, of_records) for setting in settings}
    return Study(params or paper_params(), purity_metrics(purity or {}), pd.DataFrame(), contrast_frame(drawn))
