"""The figures of a study, from the frames that `evaluate` wrote."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from safeecgmatch.config import Params
from safeecgmatch.progress import Progress
from safeecgmatch.reporting.figures import gains, overview, panels
from safeecgmatch.reporting.figures.style import STYLE, places, save
from safeecgmatch.reporting.results import Results

PROCESSES = 2  # a figure takes half a second


def all_figures(
    params: Params, results: Results, plots: dict[str, pd.DataFrame], forest: pd.DataFrame
) -> dict[str, Callable[[], Figure]]:
    """How to draw each figure, by the name of its file, in the report's order."""
    found: dict[str, Callable[[], Figure]] = {
        "forest": partial(gains.forest_figure, params, forest),
        "readings": partial(gains.effects_figure, params, results),
        "tradeoff": partial(overview.tradeoff_figure, params, results),
    }
    if any(where.real for where in places(params)):
        found["paper_vs_ours"] = partial(overview.scatter_figure, params, results)
    found["purity"] = partial(overview.purity_figure, params, results)
    found["refusal"] = partial(overview.refusal_figure, params, plots["refusal"])
    found["roc"] = partial(overview.roc_figure, params, results, plots["roc"])
    for where in places(params):
        end = where.ending
        found[f"reliability_{end}"] = partial(panels.reliability_grid, params, plots["reliability"], where)
        found[f"budget_{end}"] = partial(panels.budget_grid, params, plots["budget"], where)
        found[f"training_{end}"] = partial(panels.training_grid, params, plots["training"], where)
        found[f"confusion_{end}"] = partial(panels.confusion_grid, params, plots["confusion"], where)
    return found


def draw(make: Callable[[], Figure], folder: Path, name: str) -> None:
    with rc_context(STYLE):
        save(make(), folder, name)


def write_figures(
    folder: Path,
    params: Params,
    results: Results,
    plots: dict[str, pd.DataFrame],
    forest: pd.DataFrame,
) -> list[str]:
    """PNG and PDF of every figure; returns their names in order."""
    figures = all_figures(params, results, plots, forest)
    with ProcessPoolExecutor(PROCESSES) as pool:
        # Submitted before the bar starts its thread: a process that has several should not be forked.
        coming = [pool.submit(draw, make, folder, name) for name, make in figures.items()]
        with Progress(len(figures), "tables", "figures") as bar:
            for done in as_completed(coming):
                done.result()
                bar.advance()
    return list(figures)
