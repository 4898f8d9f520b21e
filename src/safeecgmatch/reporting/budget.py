"""What a cell's trajectory says without any training: every epoch, and other ways to choose the checkpoint.

The reported numbers are those of the best validation checkpoint. Test takes no part in any choice made here either.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from safeecgmatch.metrics import accuracy, ece, probabilities_of
from safeecgmatch.predictions import branches_of, final_metrics, own_best, predictions_at
from safeecgmatch.reporting.stored import StoredCell

METRICS = ["acc", "ece"]  # all that the tables and figures of the budget show: there are many epochs
BUDGET_COLUMNS = [
    "dataset", "ood", "row", "branch", "seed", "epoch", "iteration", "acc", "ece", "val_accuracy", "reported", "chosen",
]  # fmt: skip
LAST, LAST_FIVE, OWN_BEST = "last_epoch", "last_five", "own_best"  # stand in the column `scaling` of metrics.csv
FIVE = 5
VARIED = "varied"  # the branch, where the reported one differs between epochs


def epochs_of(stored: StoredCell) -> pd.DataFrame:
    """A line per branch and evaluation: what the cell would report had its training ended there."""
    predictions, trajectory, cell = stored.predictions, stored.trajectory, stored.cell
    common = {"dataset": cell.dataset, "ood": cell.ood, "row": cell.row, "seed": cell.seed}
    lines = []
    for index, iteration in enumerate(trajectory["iteration"]):
        then = predictions_at(predictions, trajectory, index)
        for branch in branches_of(predictions):
            probabilities = probabilities_of(then[f"test.log_probs.{branch}"])
            named = {
                "branch": branch,
                "epoch": index + 1,
                "iteration": int(iteration),
                "val_accuracy": float(
                    np.mean(then[f"validation.log_probs.{branch}"].argmax(axis=1) == then["validation.label"])
                ),
                "reported": branch == str(then["branch"]),
                "chosen": int(iteration) == stored.summary["best_iteration"],
                "acc": accuracy(probabilities, then["test.label"]),
                "ece": ece(probabilities, then["test.label"]),
            }
            lines.append({**common, **named})
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
