"""What the figures draw, as tidy frames of aggregates by cell: never a number that belongs to one record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from safeecgmatch.config import PROPOSED
from safeecgmatch.metrics import BINS, probabilities_of, reliability, risk_coverage
from safeecgmatch.predictions import answered_right, branches_of, ood_score, reported_branch
from safeecgmatch.reporting.stored import StoredCell

FALSE_ALARMS = np.linspace(0, 1, 51)  # of a ROC curve
REFUSED_SHARES = np.linspace(0, 0.9, 19)
CURVES = ["iteration", "val_accuracy", "mask_rate", "pseudo_accuracy", "pseudo_ood_share"]
NAMES = ["dataset", "row", "ood", "seed"]

READ = ("fused", "time")  # how SafeECGMatch may be read: no rule of prediction is stated in the paper


def shown(member: StoredCell) -> dict[str, str]:
    """The rows that a main run or a reading of SafeECGMatch has in the figures, with their branches.

    A row is named as in contrasts.csv: `calimatch` is its reported branch, `safeecgmatch-learned_t@time` another one.
    """
    cell = member.cell
    if cell.role not in ("main", "reading") or not member.counted or member.diverged:
        return {}
    if cell.method != PROPOSED:
        return {cell.row: reported_branch(member.predictions)}
    return {f"{cell.row}@{branch}": branch for branch in READ if branch in branches_of(member.predictions)}


def frame_of(
    member: StoredCell, columns: list[str], rows_of: Callable[[StoredCell, str], list[dict[str, Any]]]
) -> pd.DataFrame:
    """`rows_of` every branch of a cell that is shown, behind the row's name."""
    cell = member.cell
    rows = [
        {**dict(zip(NAMES, (cell.dataset, name, cell.ood, cell.seed), strict=True)), **row}
        for name, branch in shown(member).items()
        for row in rows_of(member, branch)
    ]
    return pd.DataFrame(rows, columns=[*NAMES, *columns])


def reliability_rows(member: StoredCell, branch: str) -> list[dict[str, Any]]:
    """Bins of the confidence on test."""
    values = probabilities_of(member.predictions[f"test.log_probs.{branch}"])
    correct = values.argmax(axis=1) == member.predictions["test.label"]
    count, confidence, accuracy = reliability(values.max(axis=1), correct)
    edges = np.linspace(0, 1, BINS + 1)
    return [
        {
            "lower": edges[index],
            "upper": edges[index + 1],
            "count": count[index],
            "confidence": confidence[index],
            "accuracy": accuracy[index],
        }
        for index in np.flatnonzero(count)
    ]


def roc_rows(member: StoredCell, branch: str) -> list[dict[str, Any]]:
    """The share of unseen records of the open test set that are found when a share of the seen ones is refused."""
    from sklearn.metrics import roc_curve

    classes = member.predictions[f"test.log_probs.{branch}"].shape[1]
    unseen = member.predictions["open_test.label"] >= classes
    if unseen.all() or not unseen.any():
        return []
    seen_refused, found, _ = roc_curve(unseen, _score(member, branch))
    return [
        {"fpr": round(share, 2), "tpr": value}
        for share, value in zip(FALSE_ALARMS, np.interp(FALSE_ALARMS, seen_refused, found), strict=True)
    ]


def _score(member: StoredCell, branch: str) -> npt.NDArray[np.float64]:
    """The branch's unseen-class score on the open test set."""
    return np.asarray(ood_score(member.predictions, branch), dtype=np.float64)


def refusal_rows(member: StoredCell, branch: str) -> list[dict[str, Any]]:
    """Accuracy on the rest of the open test set when a share is refused."""
    risk = risk_coverage(answered_right(member.predictions, branch), -_score(member, branch))[1]
    answered = [risk.size - 1 - int(round(share * risk.size, 6)) for share in REFUSED_SHARES]
    return [
        {"refused": round(share, 2), "accuracy": 1 - risk[last]}
        for share, last in zip(REFUSED_SHARES, answered, strict=True)
    ]


def confusion_rows(member: StoredCell, branch: str) -> list[dict[str, Any]]:
    """How often a record of one class of the open test set is named another."""
    classes = [*member.summary["classes"], "unseen"]
    counts = np.zeros((len(classes), len(classes) - 1), dtype=np.int64)
    predicted = member.predictions[f"open_test.log_probs.{branch}"].argmax(axis=1)
    np.add.at(counts, (np.minimum(member.predictions["open_test.label"], len(classes) - 1), predicted), 1)
    return [
        {"true": classes[i], "predicted": classes[j], "count": counts[i, j]}
        for i in range(counts.shape[0])
        for j in range(counts.shape[1])
    ]


def training_frame(member: StoredCell) -> pd.DataFrame:
    cell, curves = member.cell, member.history.reindex(columns=CURVES)
    named = {**member.identity, "row": cell.row, "role": cell.role, "cell": cell.path}
    for position, (key, value) in enumerate(named.items()):
        curves.insert(position, key, value)
    return curves


def plot_frames(member: StoredCell) -> dict[str, pd.DataFrame]:
    """What one cell has in the files of plots/, by name."""
    return {
        "training": training_frame(member),
        "reliability": frame_of(member, ["lower", "upper", "count", "confidence", "accuracy"], reliability_rows),
        "roc": frame_of(member, ["fpr", "tpr"], roc_rows),
        "refusal": frame_of(member, ["refused", "accuracy"], refusal_rows),
        "confusion": frame_of(member, ["true", "predicted", "count"], confusion_rows),
    }


def accuracy_ece_frame(metrics: pd.DataFrame) -> pd.DataFrame:
    """Mean accuracy and ECE of each method's main runs and readings: the paper's trade-off figure as data."""
    own = metrics["method"] == PROPOSED
    chosen = metrics[
        metrics["role"].isin(["main", "reading"])
        & metrics["counted"]
        & (metrics["scaling"] == "none")
        & metrics["metric"].isin(["acc", "ece"])
        & (metrics["branch"].isin(READ) & own | metrics["reported"] & ~own)
    ]
    rows = chosen["row"].where(chosen["method"] != PROPOSED, chosen["row"] + "@" + chosen["branch"])
    means = chosen.assign(row=rows).pivot_table(
        index=["dataset", "ood", "row"], columns="metric", values="value", sort=False
    )
    frame = means.reset_index().rename_axis(columns=None)
    labels = [f"{dataset} {ood} % {row}" for dataset, ood, row in means.index]
    frame.insert(0, "label", labels)  # one name per bar or point, for `dvc plots`
    return frame


def validation_frame(training: pd.DataFrame) -> pd.DataFrame:
    """Validation accuracy of SafeECGMatch, mean over seeds, with a name for each setting: for `dvc plots diff`."""
    chosen = training[training["row"] == PROPOSED]
    means = chosen.groupby(["dataset", "ood", "iteration"], sort=False)["val_accuracy"].mean().reset_index()
    means.insert(0, "setting", means["dataset"] + " " + means["ood"].astype(str) + " %")
    return means.drop(columns=["dataset", "ood"])
