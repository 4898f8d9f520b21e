"""What the demo in this repository shows: it learnt, it is not saturated, and no method collapsed into another."""

from __future__ import annotations

import pandas as pd
import pytest

from safeecgmatch.cells import cells
from safeecgmatch.config import load_params
from safeecgmatch.metrics import OPEN_SET, REFUSAL
from tests.conftest import ROOT

REPORT = ROOT / "reports" / "demo" / "paper"


@pytest.fixture(scope="module")
def balanced() -> pd.DataFrame:
    metrics = pd.read_csv(REPORT / "metrics.csv")
    chosen = metrics[metrics["reported"] & (metrics["scaling"] == "none")]
    return chosen[chosen["metric"] == "balanced_accuracy"]


def test_every_cell_is_there(balanced):
    wanted = {cell.path for cell in cells(load_params(ROOT / "params.yaml"))}
    assert set(balanced["cell"]) == wanted


def test_supervised_learnt_and_left_something_to_gain(balanced):
    means = balanced[balanced["method"] == "supervised"].groupby("dataset")["value"].mean()
    assert means.between(0.6, 0.95).all(), means.to_dict()


def test_every_method_learnt(balanced):
    means = balanced.groupby(["dataset", "method"])["value"].mean()
    assert (means >= 0.6).all(), means.to_dict()


def test_every_pseudo_labelling_method_accepted_some_and_a_cell_that_did_not_says_so():
    training = pd.read_csv(REPORT / "plots" / "training.csv")
    accepted = training.groupby(["dataset", "method", "cell"])["mask_rate"].max().drop("supervised", level="method")
    by_method = accepted.groupby(["dataset", "method"]).max()
    assert (by_method > 0).all(), by_method.to_dict()
    warned = pd.read_csv(REPORT / "runs.csv").set_index("cell")["warnings"].dropna()
    for cell in accepted[accepted <= 0].index.get_level_values("cell"):
        assert "accepted" in warned[cell], cell


def test_supervised_is_one_experiment_at_all_ood_levels():
    metrics = pd.read_csv(REPORT / "metrics.csv")
    rows = metrics[(metrics["method"] == "supervised") & ~metrics["metric"].isin([*OPEN_SET, *REFUSAL])]
    by_level = rows.pivot_table(
        index=["dataset", "seed", "scaling", "metric"], columns="ood", values="value", aggfunc="first"
    )
    assert len(by_level.columns) > 1 and (by_level.nunique(axis=1) == 1).all()
