"""What the figures draw, as tidy frames of aggregates: never a number that belongs to one record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from safeecgmatch.config import PROPOSED
from safeecgmatch.metrics import BINS, probabilities_of, reliability, risk_coverage
from safeecgmatch.predictions import answered_right, ood_score, reported_branch
from safeecgmatch.reporting.stored import StoredCell

SCORE_BINS = 30
REFUSED_SHARES = np.linspace(0, 0.9, 19)
CURVES = ["iteration", "val_accuracy", "mask_rate", "pseudo_accuracy", "pseudo_ood_share"]

Group = tuple[str, str, int]  # dataset, method, OOD level


def main_runs(stored: list[StoredCell]) -> dict[Group, list[StoredCell]]:
    """The main runs (no ablation, no sensitivity) with predictions, by dataset, method and OOD level."""
    groups: dict[Group, list[StoredCell]] = {}
    for member in stored:
        if member.cell.stage_name in ("train", "train_safeecgmatch") and member.counted and not member.diverged:
            groups.setdefault((member.cell.dataset, member.cell.method, member.cell.ood), []).append(member)
    return groups


def frame_of(
    stored: list[StoredCell], columns: list[str], rows_of: Callable[[list[StoredCell]], list[dict[str, Any]]]
) -> pd.DataFrame:
    """`rows_of` the runs of each group, behind the group's name."""
    names = ["dataset", "method", "ood"]
    rows = [
        {**dict(zip(names, group, strict=True)), **row}
        for group, members in main_runs(stored).items()
        for row in rows_of(members)
    ]
    return pd.DataFrame(rows, columns=[*names, *columns])


def reliability_rows(members: list[StoredCell]) -> list[dict[str, Any]]:
    """Bins of the reported branch's confidence on test, all seeds pooled."""
    confidence, correct = [], []
    for member in members:
        values = probabilities_of(member.predictions[f"test.log_probs.{reported_branch(member.predictions)}"])
        confidence.append(values.max(axis=1))
        correct.append(values.argmax(axis=1) == member.predictions["test.label"])
    count, mean_confidence, accuracy = reliability(np.concatenate(confidence), np.concatenate(correct))
    edges = np.linspace(0, 1, BINS + 1)
    return [
        {
            "lower": edges[index],
            "upper": edges[index + 1],
            "count": count[index],
            "confidence": mean_confidence[index],
            "accuracy": accuracy[index],
        }
        for index in np.flatnonzero(count)
    ]


def _open_test(member: StoredCell) -> tuple[str, npt.NDArray, npt.NDArray[np.bool_]]:
    """The reported branch, its unseen-class score on the open test set, and which of its records are unseen."""
    branch = reported_branch(member.predictions)
    classes = member.predictions[f"test.log_probs.{branch}"].shape[1]
    score = np.asarray(ood_score(member.predictions, branch), dtype=np.float64)
    return branch, score, member.predictions["open_test.label"] >= classes


def score_rows(members: list[StoredCell]) -> list[dict[str, Any]]:
    """Histogram of the unseen-class score on the open test set, seen and unseen records, all seeds pooled."""
    read = [_open_test(member) for member in members]
    values, unseen = np.concatenate([score for _, score, _ in read]), np.concatenate([flag for _, _, flag in read])
    edges = np.histogram_bin_edges(values, SCORE_BINS)
    seen_counts, unseen_counts = (np.histogram(values[mask], edges)[0] for mask in (~unseen, unseen))
    return [
        {
            "lower": edges[index],
            "upper": edges[index + 1],
            "seen": seen_counts[index],
            "unseen": unseen_counts[index],
        }
        for index in range(SCORE_BINS)
    ]


def refusal_rows(members: list[StoredCell]) -> list[dict[str, Any]]:
    """Accuracy on the rest of the open test set when a share is refused, for every seed."""
    rows = []
    for member in members:
        branch, score, _ = _open_test(member)
        risk = risk_coverage(answered_right(member.predictions, branch), -score)[1]
        for share in REFUSED_SHARES:
            answered = risk.size - 1 - int(round(share * risk.size, 6))
            rows.append({"seed": member.cell.seed, "refused": round(share, 2), "accuracy": 1 - risk[answered]})
    return rows


def confusion_rows(members: list[StoredCell]) -> list[dict[str, Any]]:
    """How often a record of one class of the open test set is named another, all seeds pooled."""
    classes = [*members[0].summary["classes"], "unseen"]
    counts = np.zeros((len(classes), len(classes) - 1), dtype=np.int64)
    for member in members:
        predicted = member.predictions[f"open_test.log_probs.{reported_branch(member.predictions)}"].argmax(axis=1)
        true = np.minimum(member.predictions["open_test.label"], len(classes) - 1)
        np.add.at(counts, (true, predicted), 1)
    return [
        {"true": classes[i], "predicted": classes[j], "count": counts[i, j]}
        for i in range(counts.shape[0])
        for j in range(counts.shape[1])
    ]


def training_frame(stored: list[StoredCell]) -> pd.DataFrame:
    frames = []
    for member in stored:
        curves = member.history.reindex(columns=CURVES)
        for position, (key, value) in enumerate([*member.identity.items(), ("cell", member.cell.path)]):
            curves.insert(position, key, value)
        frames.append(curves)
    return pd.concat(frames, ignore_index=True)


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


def plot_frames(stored: list[StoredCell], metrics: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The files of plots/, by name."""
    main = {member.cell.path for members in main_runs(stored).values() for member in members}
    training = training_frame(stored)
    return {
        "accuracy_ece": accuracy_ece_frame(metrics, main),
        "safeecgmatch_validation": validation_frame(training, main),
        "training": training,
        "reliability": frame_of(stored, ["lower", "upper", "count", "confidence", "accuracy"], reliability_rows),
        "ood_scores": frame_of(stored, ["lower", "upper", "seen", "unseen"], score_rows),
        "refusal": frame_of(stored, ["seed", "refused", "accuracy"], refusal_rows),
        "confusion": frame_of(stored, ["true", "predicted", "count"], confusion_rows),
    }
