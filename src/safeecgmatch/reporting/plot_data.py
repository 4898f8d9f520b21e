"""What one cell says, as tidy frames of aggregates: never a number that belongs to one record.

The reported numbers are those of the best validation checkpoint; a trajectory also tells every epoch, and other ways to
choose the checkpoint. Test takes no part in any choice made here either. A corpus of several sources in which class and
source are correlated lets a network learn the source. So each source is scored by itself, beside a guess that knows
nothing but the source.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from safeecgmatch.config import PROPOSED
from safeecgmatch.engine.signal_store import TABLE, Entry, read_table
from safeecgmatch.errors import UserError
from safeecgmatch.metrics import BINS, accuracy, ece, probabilities_of, reliability, risk_coverage
from safeecgmatch.predictions import (
    answered_right,
    branches_of,
    final_metrics,
    ood_score,
    own_best,
    predictions_at,
    reported_branch,
)
from safeecgmatch.reporting.stored import KEY, StoredCell, joined

FALSE_ALARMS = np.linspace(0, 1, 51)  # of a ROC curve
REFUSED_SHARES = np.linspace(0, 0.9, 19)
CURVES = ["iteration", "val_accuracy", "mask_rate", "pseudo_accuracy", "pseudo_ood_share"]
METRICS = ["acc", "ece"]  # all that the tables and figures of the budget show: there are many epochs
BUDGET_COLUMNS = [
    "dataset", "ood", "row", "branch", "seed", "epoch", "iteration", "acc", "ece", "val_accuracy", "reported", "chosen",
]  # fmt: skip
LAST, LAST_FIVE, OWN_BEST = "last_epoch", "last_five", "own_best"  # in the column `scaling` of metrics.csv
FIVE = 5
VARIED = "varied"  # the branch, where the reported one differs between epochs
ALL = "all"
FEWEST = 20  # test records: an accuracy of fewer would say something about single ones
CORPUS_COLUMNS = ["dataset", "source", "label", "records", "patients"]

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
    member: StoredCell, columns: list[str], content_of: Callable[[StoredCell, str], Mapping[str, Any]]
) -> pd.DataFrame:
    """The columns that `content_of` gives for every branch of a cell that is shown, behind the row's name."""
    cell, parts = member.cell, [pd.DataFrame(columns=[*KEY, *columns])]
    for name, branch in shown(member).items():
        named: dict[str, Any] = dict(zip(KEY, (cell.dataset, name, cell.ood, cell.seed), strict=True))
        part = pd.DataFrame(content_of(member, branch), columns=columns).assign(**named)
        parts.append(part[[*KEY, *columns]])
    return joined(parts)


def reliability_bins(member: StoredCell, branch: str) -> Mapping[str, Any]:
    """Bins of the confidence on test."""
    values = probabilities_of(member.predictions[f"test.log_probs.{branch}"])
    correct = values.argmax(axis=1) == member.predictions["test.label"]
    count, confidence, accuracy = reliability(values.max(axis=1), correct)
    edges, filled = np.linspace(0, 1, BINS + 1), np.flatnonzero(count)
    bins = {"lower": edges[:-1], "upper": edges[1:], "count": count, "confidence": confidence, "accuracy": accuracy}
    return {name: values[filled] for name, values in bins.items()}


def roc_points(member: StoredCell, branch: str) -> Mapping[str, Any]:
    """The share of unseen records of the open test set that are found when a share of the seen ones is refused."""
    from sklearn.metrics import roc_curve

    classes = member.predictions[f"test.log_probs.{branch}"].shape[1]
    unseen = member.predictions["open_test.label"] >= classes
    if unseen.all() or not unseen.any():
        return {}
    seen_refused, found, _ = roc_curve(unseen, _score(member, branch))
    return {"fpr": FALSE_ALARMS.round(2), "tpr": np.interp(FALSE_ALARMS, seen_refused, found)}


def _score(member: StoredCell, branch: str) -> npt.NDArray[np.float64]:
    """The branch's unseen-class score on the open test set."""
    return np.asarray(ood_score(member.predictions, branch), dtype=np.float64)


def refusals(member: StoredCell, branch: str) -> Mapping[str, Any]:
    """Accuracy on the rest of the open test set when a share is refused."""
    risk = risk_coverage(answered_right(member.predictions, branch), -_score(member, branch))[1]
    last = risk.size - 1 - (REFUSED_SHARES * risk.size).round(6).astype(int)
    return {"refused": REFUSED_SHARES.round(2), "accuracy": 1 - risk[last]}


def confusions(member: StoredCell, branch: str) -> Mapping[str, Any]:
    """How often a record of one class of the open test set is named another."""
    classes = [*member.summary["classes"], "unseen"]
    counts = np.zeros((len(classes), len(classes) - 1), dtype=np.int64)
    predicted = member.predictions[f"open_test.log_probs.{branch}"].argmax(axis=1)
    np.add.at(counts, (np.minimum(member.predictions["open_test.label"], len(classes) - 1), predicted), 1)
    true, named = np.repeat(classes, len(classes) - 1), np.tile(classes[:-1], len(classes))
    return {"true": true, "predicted": named, "count": counts.ravel()}


def training_frame(member: StoredCell) -> pd.DataFrame:
    cell, curves = member.cell, member.history.reindex(columns=CURVES)
    named = {**member.identity, "row": cell.row, "role": cell.role, "cell": cell.path}
    for position, (key, value) in enumerate(named.items()):
        curves.insert(position, key, value)
    return curves


def epochs_of(stored: StoredCell) -> pd.DataFrame:
    """A line per branch and evaluation: what the cell would report had its training ended there."""
    trajectory, cell, lines = stored.trajectory, stored.cell, []
    for index, iteration in enumerate(trajectory["iteration"].tolist()):
        then = predictions_at(stored.predictions, trajectory, index)
        for branch in branches_of(stored.predictions):
            probabilities, labels = probabilities_of(then[f"test.log_probs.{branch}"]), then["test.label"]
            right = then[f"validation.log_probs.{branch}"].argmax(axis=1) == then["validation.label"]
            reported, chosen = branch == str(then["branch"]), iteration == stored.summary["best_iteration"]
            scores = (accuracy(probabilities, labels), ece(probabilities, labels), float(np.mean(right)))
            named = (cell.dataset, cell.ood, cell.row, branch, cell.seed, index + 1, iteration)
            lines.append((*named, *scores, reported, chosen))
    return pd.DataFrame(lines, columns=BUDGET_COLUMNS)


def choices(stored: StoredCell, epochs: pd.DataFrame) -> list[tuple[str, str, dict[str, float], bool]]:
    """Branch, choice, metrics and whether they are the reported ones: the last epoch, the mean of the metrics of the
    last five, and, where there are several branches, each one at the best validation epoch of its own."""
    found = []
    count = int(epochs["epoch"].max())
    for choice, first in ((LAST, count), (LAST_FIVE, max(count - FIVE + 1, 1))):
        last = epochs[epochs["epoch"] >= first]
        reported = last[last["reported"]]
        parts = {str(branch): part for branch, part in last.groupby("branch")}
        if reported["branch"].nunique() > 1:
            parts[VARIED] = reported
        for branch, part in parts.items():
            means = {name: float(part[name].mean()) for name in METRICS}
            found.append((branch, choice, means, branch == VARIED or bool(part["reported"].all())))
    branches = branches_of(stored.predictions)
    for branch in branches if len(branches) > 1 else []:
        epoch = own_best(stored.predictions, stored.trajectory, branch)
        then = predictions_at(stored.predictions, stored.trajectory, epoch)
        found.append((branch, OWN_BEST, final_metrics(then, branch), branch == str(stored.predictions["branch"])))
    return found


def read_entries(filtered: Path, datasets: list[str]) -> dict[str, list[Entry]]:
    """The records of each dataset that has been filtered here."""
    files = {dataset: filtered / dataset / TABLE for dataset in datasets}
    return {dataset: read_table(file) for dataset, file in files.items() if file.is_file()}


def corpus_frame(known: Mapping[str, list[Entry]]) -> pd.DataFrame:
    """Records by source and class; the number of the dataset's patients beside each, blank where nobody is named."""
    lines = []
    for dataset, entries in known.items():
        patients = len({entry.patient for entry in entries if entry.patient}) or None
        for (source, label), records in sorted(Counter((entry.source, entry.label) for entry in entries).items()):
            lines.append((dataset, source, label, records, patients))
    return pd.DataFrame(lines, columns=CORPUS_COLUMNS).astype({"patients": "Int64"})


def commonest(entries: list[Entry], classes: list[str]) -> dict[str, int]:
    """The commonest seen class of each source, as its label; the first of equals."""
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for entry in entries:
        if entry.label in classes:
            counts[entry.source][classes.index(entry.label)] += 1
    return {source: max(sorted(found), key=lambda label: found[label]) for source, found in counts.items()}


def by_source(member: StoredCell, branch: str, entries: list[Entry]) -> Mapping[str, Any]:
    """Accuracy on test by source, beside that of a guess which knows the source alone; nothing where there is one."""
    source_of = {entry.record: entry.source for entry in entries}
    known, labels = sorted(set(source_of.values())), member.predictions["test.label"]
    if len(known) < 2:
        return {}
    try:
        sources = np.array([source_of[record] for record in member.predictions["test.record"].tolist()])
    except KeyError:
        raise UserError(
            f"{member.cell.path} was tested on records that data/filtered/{member.cell.dataset} does not have; "
            f"run `dvc repro filter@{member.cell.dataset}`, or train the cell again."
        ) from None
    guess = commonest(entries, member.summary["classes"])
    guessed = np.array([guess.get(source, -1) for source in sources]) == labels
    right = member.predictions[f"test.log_probs.{branch}"].argmax(axis=1) == labels
    masks = {ALL: np.full(sources.shape, True)} | {source: sources == source for source in known}

    def shares(hits: npt.NDArray[np.bool_]) -> list[float]:
        return [hits[mask].mean() if mask.sum() >= FEWEST else np.nan for mask in masks.values()]

    records = [mask.sum() for mask in masks.values()]
    return {"source": list(masks), "records": records, "acc": shares(right), "guess": shares(guessed)}


def plot_frames(member: StoredCell, entries: list[Entry]) -> dict[str, pd.DataFrame]:
    """What one cell has in the files of plots/, by name."""
    columns: dict[str, tuple[list[str], Callable[[StoredCell, str], Mapping[str, Any]]]] = {
        "reliability": (["lower", "upper", "count", "confidence", "accuracy"], reliability_bins),
        "roc": (["fpr", "tpr"], roc_points),
        "refusal": (["refused", "accuracy"], refusals),
        "confusion": (["true", "predicted", "count"], confusions),
        "sources": (["source", "records", "acc", "guess"], partial(by_source, entries=entries)),
    }
    frames = {name: frame_of(member, *known) for name, known in columns.items()}
    return frames | {"training": training_frame(member)} | ({} if member.diverged else {"budget": epochs_of(member)})


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
