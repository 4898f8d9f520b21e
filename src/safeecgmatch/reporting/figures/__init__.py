"""The figures of a study, from the frames that `evaluate` wrote."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from safeecgmatch.config import Params
from safeecgmatch.progress import Progress
from safeecgmatch.reporting.figures import gains, overview, panels
from safeecgmatch.reporting.figures.style import STYLE, Where, save, settings_of
from safeecgmatch.reporting.results import Results

PROCESSES = 2  # a figure takes half a second


def all_figures(
    params: Params, results: Results, plots: dict[str, pd.DataFrame], forest: pd.DataFrame
) -> dict[str, Callable[[], Figure]]:
    """How to draw each figure that has something to show, by the name of its file, in the report's order."""
    trained = settings_of(params, plots["reliability"])
    known = settings_of(params, plots["roc"])  # not where the open test set has no unseen record
    overall: dict[str, tuple[Callable[..., Figure], Any, list[Where]]] = {
        "forest": (gains.forest_figure, forest, settings_of(params, gains.estimates(forest))),
        "readings": (gains.effects_figure, results, gains.with_effects(params, results)),
        "tradeoff": (overview.tradeoff_figure, results, trained),
        "paper_vs_ours": (overview.scatter_figure, results, [where for where in trained if where.real]),
        "purity": (overview.purity_figure, results, trained),
        "refusal": (overview.refusal_figure, plots["refusal"], trained),
        "roc": (partial(overview.roc_figure, results=results), plots["roc"], known),
    }
    found: dict[str, Callable[[], Figure]] = {
        name: partial(make, params, values, shown=shown) for name, (make, values, shown) in overall.items() if shown
    }
    for where in trained:
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
