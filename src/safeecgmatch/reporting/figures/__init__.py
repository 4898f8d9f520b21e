"""The figures of a study, from the frames that `evaluate` wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from safeecgmatch.config import Params
from safeecgmatch.progress import Progress
from safeecgmatch.reporting.figures import overview, panels
from safeecgmatch.reporting.figures.style import STYLE, places, save
from safeecgmatch.reporting.results import Results


def all_figures(
    params: Params, results: Results, plots: dict[str, pd.DataFrame], runs: pd.DataFrame, gains: pd.DataFrame
) -> Iterator[tuple[str, Figure]]:
    """File name and figure, one after the other, so that only one is in memory."""
    main = runs.loc[runs["stage"].str.startswith(("train@", "train_safeecgmatch@")), "cell"]
    training = plots["training"][plots["training"]["cell"].isin(main)]
    yield "forest", overview.forest_figure(params, gains)
    yield "tradeoff", overview.tradeoff_figure(params, results)
    scatter = overview.scatter_figure(params, results)
    if scatter is not None:
        yield "paper_vs_ours", scatter
    yield "purity", overview.purity_figure(params, results)
    yield "refusal", overview.refusal_figure(params, plots["refusal"])
    for where in places(params):
        yield f"reliability_{where.ending}", panels.reliability_grid(params, plots["reliability"], where)
        yield f"training_{where.ending}", panels.training_grid(params, training, where)
        yield f"ood_scores_{where.ending}", panels.score_grid(params, results, plots["ood_scores"], where)
        yield f"confusion_{where.ending}", panels.confusion_grid(params, plots["confusion"], where)


def write_figures(
    folder: Path,
    params: Params,
    results: Results,
    plots: dict[str, pd.DataFrame],
    runs: pd.DataFrame,
    gains: pd.DataFrame,
) -> list[str]:
    """PNG and PDF of every figure; returns their names in order."""
    names = []
    real = any(overview.is_real(params, dataset) for dataset in params.grid.datasets)
    with rc_context(STYLE), Progress(4 + real + 4 * len(places(params)), "tables", "figures") as bar:
        for name, figure in all_figures(params, results, plots, runs, gains):
            save(figure, folder, name)
            names.append(name)
            bar.advance()
    return names
