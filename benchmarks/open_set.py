"""Does SafeECGMatch's one-vs-all score find unseen classes, and when must its calibration start?

Trains cells of the installed params.yaml at 60 % OOD, on data that `dvc repro split` made, with the start of pseudo-
labels and calibration at several shares of the budget; everything else is as params.yaml says. For each start it
prints, as means over the seeds:

    accuracy     of the reported prediction on the test set
    confidence   its mean maximum, untempered, of the time branch: does the classifier dare to say anything?
    AUROC S      of the reported one-vs-all score, seen against unseen records of the open test set
    AUROC MSP    of the maximum probability, for comparison
    accepted     records taken with a pseudo-label, as a share of those shown
    unseen       share of unseen classes among them; the pool has 60 %

Example: python benchmarks/open_set.py --dataset ptbxl --starts 0.01,0.4 --seeds 1,2
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from safeecgmatch.calibration.metrics import auroc, final_metrics
from safeecgmatch.config import PROPOSED, Cell, Params, load_params
from safeecgmatch.methods.base import FULL_BUDGET
from safeecgmatch.progress import Progress
from safeecgmatch.training.cell import Inputs, build, resolve
from safeecgmatch.training.outputs import predict

OOD = 60
COLUMNS = ("accuracy", "confidence", "AUROC S", "AUROC MSP", "accepted", "unseen")


def starting_at(params: Params, share: float) -> Params:
    section = params.methods[PROPOSED]
    changed = section | {"switches": section["switches"] | {"start": round(share * FULL_BUDGET)}}
    return params.model_copy(update={"methods": params.methods | {PROPOSED: changed}})


def measure(params: Params, dataset: str, seed: int) -> dict[str, float]:
    cell = Cell(dataset, PROPOSED, OOD, seed, "full", params.lambda_sum)
    inputs = Inputs.open(cell, Path("data"))
    training, sets = build(resolve(params, cell, inputs), inputs)
    training.run(lambda _: None, lambda _: None)
    method = training.method
    method.load_state_dict(training.chosen().weights)
    predictions = predict(method, sets, inputs.store.records)
    branch, unseen = method.reported_branch(), predictions["open_test.label"] >= inputs.split.num_classes
    logits = method.outputs_on(sets["test"])["class_logits.time"]
    return {
        "accuracy": final_metrics(predictions)["acc"],
        "confidence": float(logits.softmax(dim=1).amax(dim=1).mean()),
        "AUROC S": auroc(predictions[f"open_test.ood_score.{branch}"], unseen),
        "AUROC MSP": auroc(-predictions[f"open_test.log_probs.{branch}"].max(axis=1), unseen),
        **accepted(training.history),
    }


def accepted(history: list[dict[str, Any]]) -> dict[str, float]:
    """Over the whole training; a row of the history without accepted records has no share of unseen ones."""
    rates = np.array([row["mask_rate"] for row in history])
    shares = np.array([row["pseudo_ood_share"] or 0.0 for row in history])
    return {"accepted": rates.mean(), "unseen": (rates @ shares) / rates.sum() if rates.any() else float("nan")}


def main(
    dataset: str = typer.Option("ptbxl", help="ptbxl or cinc21"),
    starts: str = typer.Option("0.01,0.1,0.2,0.4", help="Shares of the budget, comma-separated; 0.01 is the paper's."),
    seeds: str = typer.Option("1,2", help="Run seeds, comma-separated; each needs its split."),
) -> None:
    """Print one row per start; run it in the project's folder."""
    params = load_params()
    shares, runs = [float(start) for start in starts.split(",")], [int(seed) for seed in seeds.split(",")]
    table = Table("start", *COLUMNS, title=f"{dataset}, {OOD} % OOD, {params.train.iterations} iterations")
    with Progress(len(shares) * len(runs), "SafeECGMatch", "cells") as progress:
        for share in shares:
            found = []
            for seed in runs:
                found.append(measure(starting_at(params, share), dataset, seed))
                progress.advance(1)
            means = {name: np.nanmean([row[name] for row in found]) for name in COLUMNS}
            table.add_row(f"{share:g}", *(f"{means[name]:.3f}" for name in COLUMNS))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
