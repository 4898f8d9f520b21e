"""Metrics of all cells, from their stored predictions alone: no network is run, no cell is found by globbing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from safeecgmatch.cells import Cell, cells
from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.errors import UserError
from safeecgmatch.files import atomic_path, write_json
from safeecgmatch.methods.parts.temperature import fit_temperature
from safeecgmatch.metrics import BINS, FLOAT32_LOG_OF_ZERO, probabilities_of, reliability
from safeecgmatch.predictions import branches_of, final_metrics, ood_score, reported_branch
from safeecgmatch.progress import Progress
from safeecgmatch.reporting.stored import IDENTITY, StoredCell, load_cell

SCORE_BINS = 30
METRIC_COLUMNS = [*IDENTITY, "branch", "scaling", "metric", "value", "config_hash", "reported", "counted", "cell"]
CURVES = ["iteration", "val_accuracy", "mask_rate", "pseudo_accuracy", "pseudo_ood_share"]
FROM_SUMMARY = ["best_iteration", "best_val_accuracy", "parameters", "labelled", "pool", "diverged", "no_competitor"]
FROM_TRACKING = ["run_id", "commit", "dirty", "wall_seconds", "iterations_per_second", "device"]


@dataclass(frozen=True)
class Evaluation:
    """The frames that `evaluate` writes, and the headline numbers."""

    metrics: pd.DataFrame
    runs: pd.DataFrame
    plots: dict[str, pd.DataFrame]
    headline: dict[str, Any]


def metric_rows(stored: StoredCell) -> list[dict[str, Any]]:
    """One row per branch, scaling and metric; `posthoc` divides by a temperature fitted on validation."""
    predictions, rows = stored.predictions, []
    common = {
        **stored.identity,
        "config_hash": stored.config["config_hash"],
        "counted": stored.counted,
        "cell": stored.cell.path,
    }
    for branch in branches_of(predictions):
        validation = np.maximum(predictions[f"validation.log_probs.{branch}"], FLOAT32_LOG_OF_ZERO)
        temperature = fit_temperature(validation, predictions["validation.label"])
        values = {
            "none": final_metrics(predictions, branch),
            "posthoc": {**final_metrics(predictions, branch, temperature), "temperature": temperature},
        }
        for scaling, metrics in values.items():
            for metric, value in metrics.items():
                rows.append(
                    {
                        **common,
                        "branch": branch,
                        "scaling": scaling,
                        "metric": metric,
                        "value": value,
                        "reported": branch == reported_branch(predictions),
                    }
                )
    return rows


def run_row(cell: Cell, stored: StoredCell | None) -> dict[str, Any]:
    row = {"cell": cell.path, "stage": cell.stage, **cell.describe(), "state": "missing" if stored is None else "done"}
    if stored is not None:
        row |= {key: stored.tracking.get(key) for key in FROM_TRACKING}
        row |= {key: stored.summary.get(key) for key in FROM_SUMMARY}
        row["config_hash"] = stored.config["config_hash"]
    return row


def reliability_frame(stored: list[StoredCell]) -> pd.DataFrame:
    """Bins of the reported branch's confidence on test, all seeds of a setting pooled."""
    rows = []
    for setting, members in _by_setting(stored).items():
        confidence, correct = [], []
        for member in members:
            values = probabilities_of(member.predictions[f"test.log_probs.{reported_branch(member.predictions)}"])
            confidence.append(values.max(axis=1))
            correct.append(values.argmax(axis=1) == member.predictions["test.label"])
        count, mean_confidence, accuracy = reliability(np.concatenate(confidence), np.concatenate(correct))
        edges = np.linspace(0, 1, BINS + 1)
        for index in np.flatnonzero(count):
            rows.append(
                {
                    **setting_columns(setting),
                    "lower": edges[index],
                    "upper": edges[index + 1],
                    "count": count[index],
                    "confidence": mean_confidence[index],
                    "accuracy": accuracy[index],
                }
            )
    return pd.DataFrame(rows)


def ood_score_frame(stored: list[StoredCell]) -> pd.DataFrame:
    """Histogram of the unseen-class score on the open test set, seen and unseen records, all seeds pooled."""
    rows = []
    for setting, members in _by_setting(stored).items():
        scores, unseen = [], []
        for member in members:
            branch = reported_branch(member.predictions)
            scores.append(np.asarray(ood_score(member.predictions, branch), dtype=np.float64))
            classes = member.predictions[f"test.log_probs.{branch}"].shape[1]
            unseen.append(member.predictions["open_test.label"] >= classes)
        values, positive = np.concatenate(scores), np.concatenate(unseen)
        edges = np.histogram_bin_edges(values, SCORE_BINS)
        seen_counts, unseen_counts = (np.histogram(values[mask], edges)[0] for mask in (~positive, positive))
        for index in range(SCORE_BINS):
            rows.append(
                {
                    **setting_columns(setting),
                    "lower": edges[index],
                    "upper": edges[index + 1],
                    "seen": seen_counts[index],
                    "unseen": unseen_counts[index],
                }
            )
    return pd.DataFrame(rows)


def training_frame(stored: list[StoredCell]) -> pd.DataFrame:
    frames = []
    for member in stored:
        curves = member.history.reindex(columns=CURVES)
        for position, (key, value) in enumerate([*member.identity.items(), ("cell", member.cell.path)]):
            curves.insert(position, key, value)
        frames.append(curves)
    return pd.concat(frames, ignore_index=True)


Setting = tuple[str, str, int]


def setting_columns(setting: Setting) -> dict[str, Any]:
    return dict(zip(("dataset", "method", "ood"), setting, strict=True))


def _by_setting(stored: list[StoredCell]) -> dict[Setting, list[StoredCell]]:
    """The main runs (no ablation, no sensitivity) of each dataset, method and OOD level."""
    groups: dict[Setting, list[StoredCell]] = {}
    for member in stored:
        if member.cell.stage_name in ("train", "train_safeecgmatch") and member.counted:
            groups.setdefault((member.cell.dataset, member.cell.method, member.cell.ood), []).append(member)
    return groups


def accuracy_ece_frame(metrics: pd.DataFrame, main_cells: set[str]) -> pd.DataFrame:
    """Mean accuracy and ECE of each method's main runs: the paper's trade-off figure as data."""
    chosen = metrics[
        metrics["reported"]
        & metrics["counted"]
        & (metrics["scaling"] == "none")
        & metrics["metric"].isin(["acc", "ece"])
        & metrics["cell"].isin(main_cells)
    ]
    means = chosen.pivot_table(index=["dataset", "ood", "method"], columns="metric", values="value", sort=False)
    frame = means.reset_index().rename_axis(columns=None)
    labels = [f"{dataset} {ood} % {method}" for dataset, ood, method in means.index]
    frame.insert(0, "label", labels)  # one name per bar or point, for `dvc plots`
    return frame


def validation_frame(training: pd.DataFrame, main_cells: set[str]) -> pd.DataFrame:
    """Validation accuracy of SafeECGMatch, mean over seeds, one column per setting: for `dvc plots diff`."""
    chosen = training[(training["method"] == PROPOSED) & training["cell"].isin(main_cells)]
    settings = chosen["dataset"] + "_" + chosen["ood"].astype(str)
    means = chosen.assign(setting=settings).pivot_table(
        index="iteration", columns="setting", values="val_accuracy", sort=False
    )
    return means.sort_index().reset_index().rename_axis(columns=None)


def headline_numbers(metrics: pd.DataFrame, runs: pd.DataFrame, params: Params) -> dict[str, Any]:
    """At most 14 numbers: SafeECGMatch's main runs in the first four settings, and how many cells there are."""
    main = set(runs.loc[runs["stage"].str.startswith("train_safeecgmatch@"), "cell"])
    chosen = metrics[
        metrics["reported"] & metrics["counted"] & (metrics["scaling"] == "none") & metrics["cell"].isin(main)
    ]
    numbers: dict[str, Any] = {"cells": {"asked": len(runs), "done": int((runs["state"] == "done").sum())}}
    settings = [(dataset, ood) for dataset in params.grid.datasets for ood in params.grid.ood_levels]
    for dataset, ood in settings[:4]:
        here = chosen[(chosen["dataset"] == dataset) & (chosen["ood"] == ood)]
        means = here.groupby("metric")["value"].mean()
        found = {metric: float(means[metric]) for metric in ("acc", "ece", "auroc") if metric in means}
        if found:
            numbers[f"{dataset}_{ood}"] = found
    return numbers


def evaluate(params: Params, runs: Path = Path("runs"), tracking: Path = Path("tracking")) -> Evaluation:
    """Everything that can be said about the cells of params.yaml, as frames."""
    rows, run_rows, stored = [], [], []
    wanted = cells(params)
    with Progress(len(wanted), "evaluate", "cells") as bar:
        for cell in wanted:
            found = load_cell(cell, params, runs, tracking)
            run_rows.append(run_row(cell, found))
            if found is not None:
                stored.append(found)
                rows += metric_rows(found)
            bar.advance()
    if not stored:
        raise UserError(f"No cell of params.yaml has been trained in {runs}; run `dvc repro` first.")
    metrics = pd.DataFrame(rows, columns=METRIC_COLUMNS)
    run_frame = pd.DataFrame(run_rows)
    main = {member.cell.path for members in _by_setting(stored).values() for member in members}
    training = training_frame(stored)
    return Evaluation(
        metrics,
        run_frame,
        {
            "accuracy_ece": accuracy_ece_frame(metrics, main),
            "safeecgmatch_validation": validation_frame(training, main),
            "training": training,
            "reliability": reliability_frame(stored),
            "ood_scores": ood_score_frame(stored),
        },
        headline_numbers(metrics, run_frame, params),
    )


def report_folder(params: Params) -> Path:
    return Path("reports") / params.profile / params.protocol


def write_evaluation(evaluation: Evaluation, folder: Path) -> None:
    """metrics.csv, runs.csv, headline.json and plots/*.csv, at full precision."""
    for name, frame in {"metrics.csv": evaluation.metrics, "runs.csv": evaluation.runs}.items():
        with atomic_path(folder / name) as partial:
            frame.to_csv(partial, index=False)
    write_json(folder / "headline.json", evaluation.headline)
    with atomic_path(folder / "plots") as partial:
        partial.mkdir()
        for name, frame in evaluation.plots.items():
            frame.to_csv(partial / f"{name}.csv", index=False)
