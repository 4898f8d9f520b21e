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
from safeecgmatch.reporting.figures import overview, panels
from safeecgmatch.reporting.figures.style import STYLE, places, save
from safeecgmatch.reporting.results import Results

PROCESSES = 2  # a figure takes half a second


def all_figures(
    params: Params, results: Results, plots: dict[str, pd.DataFrame], runs: pd.DataFrame, gains: pd.DataFrame
) -> dict[str, Callable[[], Figure]]:
    """How to draw each figure, by the name of its file, in the report's order."""
    main = runs.loc[runs["stage"].str.startswith(("train@", "train_safeecgmatch@")), "cell"]
    training = plots["training"][plots["training"]["cell"].isin(main)]
    found: dict[str, Callable[[], Figure]] = {
        "forest": partial(overview.forest_figure, params, gains),
        "tradeoff": partial(overview.tradeoff_figure, params, results),
    }
    if any(overview.is_real(params, dataset) for dataset in params.grid.datasets):
        found["paper_vs_ours"] = partial(overview.scatter_figure, params, results)
    found["purity"] = partial(overview.purity_figure, params, results)
    found["refusal"] = partial(overview.refusal_figure, params, plots["refusal"])
    for where in places(params):
        end = where.ending
        found[f"reliability_{end}"] = partial(panels.reliability_grid, params, plots["reliability"], where)
        found[f"training_{end}"] = partial(panels.training_grid, params, training, where)
        found[f"ood_scores_{end}"] = partial(panels.score_grid, params, results, plots["ood_scores"], where)
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
    runs: pd.DataFrame,
    gains: pd.DataFrame,
) -> list[str]:
    """PNG and PDF of every figure; returns their names in order."""
    figures = all_figures(params, results, plots, runs, gains)
    with ProcessPoolExecutor(PROCESSES) as pool:
        # Submitted before the bar starts its thread: a process that has several should not be forked.
        coming = [pool.submit(draw, make, folder, name) for name, make in figures.items()]
        with Progress(len(figures), "tables", "figures") as bar:
            for done in as_completed(coming):
                done.result()
                bar.advance()
    return list(figures)
