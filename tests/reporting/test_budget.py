from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from safeecgmatch.predictions import own_best, predictions_at, read_arrays
from safeecgmatch.reporting.plot_data import BUDGET_COLUMNS, FIVE, choices, epochs_of
from safeecgmatch.reporting.stored import StoredCell, load_cell
from tests.reporting.conftest import MadeUp


def stored(study: MadeUp, path: str) -> StoredCell:
    cell = next(cell for cell in study.cells if cell.path == path)
    found = load_cell(cell, study.root / "runs", study.root / "tracking")[0]
    assert found
    return found


def test_at_the_chosen_epoch_the_budget_is_what_was_reported(study: MadeUp) -> None:
    frame, metrics = study.evaluation.plots["budget"], study.evaluation.metrics
    assert list(frame.columns) == BUDGET_COLUMNS
    assert len(frame) == 3 * metrics.loc[metrics["scaling"] == "none", ["cell", "branch"]].drop_duplicates().shape[0]
    chosen = frame[frame["chosen"]].set_index(["dataset", "ood", "row", "seed", "branch"])
    assert set(chosen["epoch"]) == {3} and set(chosen["iteration"]) == {150}
    plain = metrics[metrics["scaling"] == "none"]
    for metric in ("acc", "ece"):
        values = plain[plain["metric"] == metric].set_index(["dataset", "ood", "row", "seed", "branch"])
        assert chosen[metric].eq(values["value"]).all() and len(values) == len(chosen)
        assert chosen["reported"].eq(values["reported"]).all()
    earlier = frame[frame["epoch"] == 1].set_index(["dataset", "ood", "row", "seed", "branch"])
    assert (earlier["acc"] < chosen["acc"]).mean() > 0.8  # the made-up runs learn


def test_validation_accuracy_of_every_epoch_and_branch_is_its_own(study: MadeUp) -> None:
    path = "ptbxl/safeecgmatch/60/2"
    trajectory = read_arrays(study.root / "runs" / path / "trajectory.npz")
    labels = read_arrays(study.root / "runs" / path / "predictions.npz")["validation.label"]
    frame = epochs_of(stored(study, path))
    for branch, lines in frame.groupby("branch"):
        answers = trajectory[f"validation.log_probs.{branch}"].argmax(axis=2)
        assert lines["val_accuracy"].tolist() == (answers == labels).mean(axis=1).tolist()


def test_other_choices_are_the_last_epoch_the_mean_of_five_and_each_branchs_own_best(study: MadeUp) -> None:
    cell = stored(study, "ptbxl/safeecgmatch/60/1")
    lines = [line for epoch in range(1, 8) for line in with_epoch(epochs_of(cell), epoch)]
    found = {(branch, choice): (metrics, told) for branch, choice, metrics, told in choices(cell, pd.concat(lines))}
    by_epoch = pd.concat(lines).set_index(["branch", "epoch"])
    for branch in ("time", "freq", "fused"):
        last = found[branch, "last_epoch"]
        assert last[0]["ece"] == by_epoch.loc[(branch, 7), "ece"] and last[1] == (branch == "fused")
        five = [by_epoch.loc[(branch, epoch), "acc"] for epoch in range(7 - FIVE + 1, 8)]
        assert found[branch, "last_five"][0]["acc"] == pytest.approx(np.mean(five))
        epoch = own_best(cell.predictions, cell.trajectory, branch)
        then = predictions_at(cell.predictions, cell.trajectory, epoch)
        right = then[f"test.log_probs.{branch}"].argmax(axis=1) == then["test.label"]
        assert found[branch, "own_best"][0]["acc"] == right.mean()
        assert found[branch, "own_best"][1] == (branch == "fused")


def with_epoch(frame: pd.DataFrame, epoch: int) -> list[pd.DataFrame]:
    """Seven epochs out of three, each with numbers of its own."""
    part = frame[frame["epoch"] == 1 + epoch % 3].assign(epoch=epoch)
    return [part.assign(acc=part["acc"] + epoch / 100, ece=part["ece"] + epoch / 1000)]


def test_where_the_reported_branch_changes_the_mean_is_of_what_was_reported(study: MadeUp) -> None:
    cell = stored(study, "ptbxl/tstfc/60/1")
    trajectory = dict(cell.trajectory) | {"branch": np.array(["time", "freq", "mean"])}
    changed = replace(cell, trajectory=trajectory)
    epochs = epochs_of(changed)
    found = {(branch, choice): (metrics, told) for branch, choice, metrics, told in choices(changed, epochs)}
    by = epochs.set_index(["branch", "epoch"])["acc"]
    metrics, told = found["varied", "last_five"]
    assert told and metrics["acc"] == pytest.approx(np.mean([by["time", 1], by["freq", 2], by["mean", 3]]))
    assert not any(
        told for (branch, choice), (_, told) in found.items() if choice == "last_five" and branch != "varied"
    )
    assert found["mean", "last_epoch"][1] and ("varied", "last_epoch") not in found


def test_a_single_branch_has_no_own_best(study: MadeUp) -> None:
    metrics = study.evaluation.metrics
    assert "own_best" not in set(metrics.loc[metrics["row"] == "calimatch", "scaling"])
