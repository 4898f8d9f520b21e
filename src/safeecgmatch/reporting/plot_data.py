"""What the figures draw, as tidy frames of aggregates: never a number that belongs to one record."""

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

SCORE_BINS = 30
REFUSED_SHARES = np.linspace(0, 0.9, 19)
CURVES = ["iteration", "val_accuracy", "mask_rate", "pseudo_accuracy", "pseudo_ood_share"]

READ = ("fused", "time")  # how SafeECGMatch may be read: no rule of prediction is stated in the paper

Group = tuple[str, str, int]  # dataset, row, OOD level
Member = tuple[StoredCell, str]  # with the branch that is shown


def main_runs(stored: list[StoredCell]) -> dict[Group, list[Member]]:
    """The main runs and the readings of SafeECGMatch that have predictions, by dataset, row and OOD level.

    A row is named as in contrasts.csv: `calimatch` is its reported branch, `safeecgmatch-learned_t@time` another one.
    """
    groups: dict[Group, list[Member]] = {}
    for member in stored:
        cell = member.cell
        if cell.role not in ("main", "reading") or not member.counted or member.diverged:
            continue
        known = branches_of(member.predictions)
        shown = {f"{cell.row}@{branch}": branch for branch in READ if branch in known}
        for row, branch in (
            shown.items() if cell.method == PROPOSED else [(cell.row, reported_branch(member.predictions))]
        ):
            groups.setdefault((cell.dataset, row, cell.ood), []).append((member, branch))
    return groups


def frame_of(
    stored: list[StoredCell], columns: list[str], rows_of: Callable[[list[Member]], list[dict[str, Any]]]
) -> pd.DataFrame:
    """`rows_of` the runs of each group, behind the group's name."""
    names = ["dataset", "row", "ood"]
    rows = [
        {**dict(zip(names, group, strict=True)), **row}
        for group, members in main_runs(stored).items()
        for row in rows_of(members)
    ]
    return pd.DataFrame(rows, columns=[*names, *columns])


def reliability_rows(members: list[Member]) -> list[dict[str, Any]]:
    """Bins of the confidence on test, all seeds pooled."""
    confidence, correct = [], []
    for member, branch in members:
        values = probabilities_of(member.predictions[f"test.log_probs.{branch}"])
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


def _open_test(member: StoredCell, branch: str) -> tuple[npt.NDArray, npt.NDArray[np.bool_]]:
    """The branch's unseen-class score on the open test set, and which of its records are unseen."""
    classes = member.predictions[f"test.log_probs.{branch}"].shape[1]
    score = np.asarray(ood_score(member.predictions, branch), dtype=np.float64)
    return score, member.predictions["open_test.label"] >= classes


def score_rows(members: list[Member]) -> list[dict[str, Any]]:
    """Histogram of the unseen-class score on the open test set, seen and unseen records, all seeds pooled."""
    values, unseen = map(np.concatenate, zip(*(_open_test(*member) for member in members), strict=True))
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


def refusal_rows(members: list[Member]) -> list[dict[str, Any]]:
    """Accuracy on the rest of the open test set when a share is refused, for every seed."""
    rows = []
    for member, branch in members:
        score, _ = _open_test(member, branch)
        risk = risk_coverage(answered_right(member.predictions, branch), -score)[1]
        for share in REFUSED_SHARES:
            answered = risk.size - 1 - int(round(share * risk.size, 6))
            rows.append({"seed": member.cell.seed, "refused": round(share, 2), "accuracy": 1 - risk[answered]})
    return rows


def confusion_rows(members: list[Member]) -> list[dict[str, Any]]:
    """How often a record of one class of the open test set is named another, all seeds pooled."""
    classes = [*members[0][0].summary["classes"], "unseen"]
    counts = np.zeros((len(classes), len(classes) - 1), dtype=np.int64)
    for member, branch in members:
        predicted = member.predictions[f"open_test.log_probs.{branch}"].argmax(axis=1)
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
        cell = member.cell
        curves = member.history.reindex(columns=CURVES)
        named = {**member.identity, "row": cell.row, "role": cell.role, "cell": cell.path}
        for position, (key, value) in enumerate(named.items()):
            curves.insert(position, key, value)
        frames.append(curves)
    return pd.concat(frames, ignore_index=True)


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


def plot_frames(stored: list[StoredCell], metrics: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The files of plots/, by name."""
    training = training_frame(stored)
    return {
        "accuracy_ece": accuracy_ece_frame(metrics),
        "safeecgmatch_validation": validation_frame(training),
        "training": training,
        "reliability": frame_of(stored, ["lower", "upper", "count", "confidence", "accuracy"], reliability_rows),
        "ood_scores": frame_of(stored, ["lower", "upper", "seen", "unseen"], score_rows),
        "refusal": frame_of(stored, ["seed", "refused", "accuracy"], refusal_rows),
        "confusion": frame_of(stored, ["true", "predicted", "count"], confusion_rows),
    }
