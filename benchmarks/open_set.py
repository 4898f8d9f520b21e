"""How well does SafeECGMatch's one-vs-all score find unseen classes, and what does that depend on?

Trains SafeECGMatch at 60 % OOD as params.yaml says, on data that `dvc repro split` made, with pseudo-labels and
calibration starting at several shares of the budget. Two tables, both over all seeds:

1. for each start, at the weights that validation chose: test accuracy, the time branch's untempered confidence (does
   the classifier dare to say anything?), the AUROC of seen against unseen records by the score of each branch and of
   both, by the maximum probability for comparison, and the share of unseen classes among accepted records (the pool
   has 60 %);
2. from the curves: both branches at every evaluation, grouped by the accuracy that the branch had at that moment.

Example: python benchmarks/open_set.py --dataset ptbxl --starts 0.01,0.4 --seeds 1,2
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from safeecgmatch.cells import Cell
from safeecgmatch.config import PROPOSED, Params, load_params
from safeecgmatch.engine.assembly import Inputs, build
from safeecgmatch.engine.contract import FULL_BUDGET
from safeecgmatch.engine.fingerprint import resolve
from safeecgmatch.engine.loop import Training
from safeecgmatch.engine.method import Method
from safeecgmatch.engine.signals import SignalSet
from safeecgmatch.metrics import auroc
from safeecgmatch.progress import Progress

OOD = 60
ACCURACIES = (0.0, 0.5, 0.7, 0.8, 0.9, 1.0)
Numbers = dict[str, float]


def with_budget(params: Params, iterations: int | None, learning_rate: float | None) -> Params:
    iterations, learning_rate = iterations or params.train.iterations, learning_rate or params.train.learning_rate
    budget = {"iterations": iterations, "epoch": max(1, iterations // 10), "learning_rate": learning_rate}
    return params.model_copy(update={"train": params.train.model_copy(update=budget)})


def starting_at(params: Params, share: float) -> Params:
    section = params.methods[PROPOSED]
    changed = section | {"switches": {params.protocol: {"start": round(share * FULL_BUDGET)}}}
    return params.model_copy(update={"methods": params.methods | {PROPOSED: changed}})


def judge(method: Method, open_test: SignalSet) -> dict[str, Numbers]:
    """Per branch: accuracy on seen records, AUROC of its score, AUROC of its maximum probability."""
    assert open_test.labels is not None
    labels = open_test.labels.cpu().numpy()
    unseen = labels >= method.setting.num_classes
    found = {}
    for branch, prediction in method.predict(method.outputs_on(open_test)).items():
        assert prediction.ood_score is not None
        log_probs = prediction.log_probs.cpu().numpy()
        found[branch] = {
            "accuracy": float((log_probs.argmax(axis=1) == labels)[~unseen].mean()),
            "S": auroc(prediction.ood_score.cpu().numpy(), unseen),
            "MSP": auroc(-log_probs.max(axis=1), unseen),
        }
    return found


def measure(params: Params, dataset: str, seed: int) -> tuple[Numbers, list[Numbers]]:
    """(row of the first table, both branches at every evaluation)"""
    cell = Cell(dataset, PROPOSED, OOD, seed, "full", params.lambda_sum)
    inputs = Inputs.open(cell, Path("data"))
    training, sets = build(resolve(params, cell), inputs)
    method = training.method
    curve: list[Numbers] = []

    def after_evaluation(_: dict[str, Any]) -> None:
        now = judge(method, sets["open_test"])
        curve.extend(now[branch] for branch in ("time", "freq"))

    training.run(lambda _: None, after_evaluation)
    method.load_state_dict(training.chosen().weights)
    chosen = judge(method, sets["open_test"])
    logits = method.outputs_on(sets["test"])["class_logits.time"]
    row = {
        "accuracy": chosen["fused"]["accuracy"],
        "confidence": float(logits.softmax(dim=1).amax(dim=1).mean()),
        **{f"S {branch}": chosen[branch]["S"] for branch in ("time", "freq", "fused")},
        "MSP fused": chosen["fused"]["MSP"],
        **accepted(training),
    }
    return row, curve


def accepted(training: Training) -> Numbers:
    """Over the whole training; a row of the history without accepted records has no share of unseen ones."""
    rates = np.array([row["mask_rate"] for row in training.history])
    shares = np.array([row["pseudo_ood_share"] or 0.0 for row in training.history])
    return {"accepted": rates.mean(), "unseen": (rates @ shares) / rates.sum() if rates.any() else float("nan")}


def main(
    dataset: str = typer.Option("ptbxl", help="ptbxl or cinc21"),
    starts: str = typer.Option("0.01,0.4", help="Shares of the budget, comma-separated; 0.01 is the paper's."),
    seeds: str = typer.Option("1,2", help="Run seeds, comma-separated; each needs its split."),
    iterations: int = typer.Option(None, help="Another budget than that of params.yaml, with ten evaluations."),
    learning_rate: float = typer.Option(None, help="Another one than that of params.yaml."),
) -> None:
    """Print both tables; run it in the project's folder."""
    params = with_budget(load_params(), iterations, learning_rate)
    shares, runs = [float(start) for start in starts.split(",")], [int(seed) for seed in seeds.split(",")]
    setting = f"{dataset}, {OOD} % OOD, {params.train.iterations} iterations at {params.train.learning_rate:g}"
    rows: dict[float, list[Numbers]] = {share: [] for share in shares}
    curves: list[Numbers] = []
    with Progress(len(shares) * len(runs), "SafeECGMatch", "cells") as progress:
        for share in shares:
            for seed in runs:
                row, curve = measure(starting_at(params, share), dataset, seed)
                rows[share].append(row)
                curves += curve
                progress.advance(1)
    names = list(rows[shares[0]][0])
    first = Table("start", *names, title=f"{setting}, mean of {len(runs)} seeds")
    for share, found in rows.items():
        first.add_row(f"{share:g}", *(f"{np.nanmean([row[name] for row in found]):.3f}" for name in names))
    second = Table("accuracy of the branch", "evaluations", "AUROC of its S", title=f"{setting}, every evaluation")
    accuracy, score = (np.array([point[name] for point in curves]) for name in ("accuracy", "S"))
    for low, high in pairwise(ACCURACIES):
        inside = (accuracy > low) & (accuracy <= high)
        if inside.any():
            second.add_row(f"{low:g} to {high:g}", str(inside.sum()), f"{score[inside].mean():.3f}")
    Console().print(first, second)


if __name__ == "__main__":
    typer.run(main)
