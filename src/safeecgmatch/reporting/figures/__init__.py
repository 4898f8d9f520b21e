"""The figures of a study, from the frames that `evaluate` wrote."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from safeecgmatch.progress import Progress
from safeecgmatch.reporting.figures import gains, overview, panels
from safeecgmatch.reporting.figures.style import STYLE, save
from safeecgmatch.reporting.study import Study, is_real, places

GRIDS = {
    "reliability": panels.reliability_grid,
    "budget": panels.budget_grid,
    "training": panels.training_grid,
    "confusion": panels.confusion_grid,
}
PROCESSES = 2  # a figure takes half a second


def all_figures(study: Study, forest: pd.DataFrame) -> dict[str, Callable[[], Figure]]:
    """How to draw each figure, by the name of its file, in the report's order."""
    found: dict[str, Callable[[], Figure]] = {
        "forest": partial(gains.forest_figure, study.params, forest),
        "readings": partial(gains.effects_figure, study),
        "tradeoff": partial(overview.tradeoff_figure, study),
    }
    if is_real(study.params):
        found["paper_vs_ours"] = partial(overview.scatter_figure, study)
    found["purity"] = partial(overview.purity_figure, study)
    found["refusal"] = partial(overview.refusal_figure, study)
    found["roc"] = partial(overview.roc_figure, study)
    for where in places(study.params):
        for name, grid in GRIDS.items():
            found[f"{name}_{where.ending}"] = partial(grid, study, where)
    return found


def draw(make: Callable[[], Figure], folder: Path, name: str) -> None:
    with rc_context(STYLE):
        save(make(), folder, name)


def write_figures(folder: Path, study: Study, forest: pd.DataFrame) -> list[str]:
    """PNG and PDF of every figure; returns their names in order."""
    figures = all_figures(study, forest)
    with ProcessPoolExecutor(PROCESSES) as pool:
        # Submitted before the bar starts its thread: a process that has several should not be forked.
        coming = [pool.submit(draw, make, folder, name) for name, make in figures.items()]
        with Progress(len(figures), "tables", "figures") as bar:
            for done in as_completed(coming):
                done.result()
                bar.advance()
    return list(figures)
