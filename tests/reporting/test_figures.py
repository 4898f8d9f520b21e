from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from safeecgmatch.reporting.reliability import reliability_figure

from safeecgmatch.cells import Cell
from safeecgmatch.metrics import ece, probabilities_of
from safeecgmatch.reporting.figures import (
    COLOURS,
    MARKERS,
    reliability_grid,
    score_grid,
    tradeoff_figure,
    training_grid,
)
from safeecgmatch.reporting.results import Results
from tests.reporting.conftest import Study
from tests.reporting.synthetic import BASELINES, make_predictions


def test_no_two_methods_look_alike() -> None:
    looks = {(COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]) for i in range(len(BASELINES) + 1)}
    assert len(looks) == len(BASELINES) + 1


def test_tradeoff_shows_every_method_published_and_ours(study: Study) -> None:
    results = Results(study.evaluation.metrics, study.params.grid.seeds)
    left, right = tradeoff_figure(study.params, results, ("ptbxl", 30)).axes
    assert len(left.containers) == len(right.containers) == 12
    means = study.evaluation.plots["accuracy_ece"].set_index(["dataset", "ood", "method"])
    drawn = {c.get_label(): c.lines[0].get_xydata()[0] for c in right.containers}
    expected = means.loc[("ptbxl", 30, "calimatch"), ["ece", "acc"]]
    assert drawn["CaliMatch"] == pytest.approx(expected.to_numpy())
    published = {c.get_label(): c.lines[0].get_xydata()[0] for c in left.containers}
    assert published["SafeECGMatch"] == pytest.approx([0.045, 0.852])


def test_grids_have_one_panel_per_method(study: Study) -> None:
    results, plots = Results(study.evaluation.metrics, study.params.grid.seeds), study.evaluation.plots
    setting = ("cinc21", 60)
    for figure in (
        reliability_grid(study.params, results, plots["reliability"], setting),
        score_grid(study.params, results, plots["ood_scores"], setting),
        training_grid(study.params, plots["training"], setting),
    ):
        titles = [axes.get_title().split(",")[0] for axes in figure.axes if axes.get_visible()]
        assert len(titles) == 12 and titles[0] == "Supervised" and titles[-1] == "SafeECGMatch"


def test_a_method_without_runs_says_so(study: Study) -> None:
    plots = study.evaluation.plots["training"]
    figure = training_grid(study.params, plots[plots["method"] != "adello"], ("ptbxl", 30))
    silent = [axes.get_title() for axes in figure.axes if any(t.get_text() == "no runs" for t in axes.texts)]
    assert silent == ["Adello"]


def test_reliability_figure_of_one_run() -> None:
    predictions = make_predictions(Cell("ptbxl", "safeecgmatch", 30, 1, "full", 1.0), 80)
    (axes,) = reliability_figure(predictions).axes
    value = ece(probabilities_of(predictions["test.log_probs.fused"]), predictions["test.label"])
    assert "fused" in axes.get_title() and f"{value:.3f}" in axes.get_title()
    heights = np.array([bar.get_height() for bar in axes.patches])
    assert ((heights >= 0) & (heights <= 1)).all() and len(heights) > 3
    assert "time" in reliability_figure(predictions, "time").axes[0].get_title()


def test_the_module_for_training_cells_does_not_import_matplotlib() -> None:
    code = "import sys, safeecgmatch.reporting.reliability; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"matplotlib", "pandas", "scipy"}.isdisjoint(loaded)
