"""All methods in one panel: trade-off, refusals, purity of accepted records, paper against ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.reporting.figures.style import (
    BLUE,
    GREY,
    WIDTH,
    Where,
    look,
    places,
    shown_rows,
    side_legend,
    within_unit,
)
from safeecgmatch.reporting.names import metric_name
from safeecgmatch.reporting.published import published
from safeecgmatch.reporting.results import Results
from safeecgmatch.reporting.rows import entries, trainings
from safeecgmatch.reporting.statistics import Summary

PUBLISHED = {"color": "white", "marker": "*"}  # SafeECGMatch, which the paper prints once
PUBLISHED_LABEL = "SafeECGMatch (published)"


def tradeoff_figure(params: Params, results: Results) -> Figure:
    """Accuracy against ECE of every method in every setting, bars one sample std; the paper's numbers above ours, but
    only where ours come from the same data. The panels of a dataset share their axes.
    """
    levels = params.grid.ood_levels
    real = {where.dataset for where in places(params) if where.real}
    lines = [
        (dataset, published_too)
        for dataset in params.grid.datasets
        for published_too in ([True, False] if dataset in real else [False])
    ]
    figure = Figure(figsize=(WIDTH, 2.7 * len(lines) + 0.4), layout="constrained")
    grid = figure.subplots(len(lines), len(levels), squeeze=False)
    printed = published("benchmark")
    first_of: dict[str, Axes] = {}
    for (dataset, published_too), panels in zip(lines, grid, strict=True):
        for axes, where in zip(panels, (w for w in places(params) if w.dataset == dataset), strict=True):
            if dataset in first_of:
                axes.sharex(first_of[dataset])
                axes.sharey(first_of[dataset])
            first_of.setdefault(dataset, axes)
            for index, entry in enumerate(entries(params)):
                own = entry.method == PROPOSED
                if published_too:
                    keys = [(dataset, entry.method, where.ood, metric) for metric in ("ece", "acc")]
                    pair = [printed[key].summary for key in keys if key in printed]
                    style, label = (PUBLISHED, PUBLISHED_LABEL) if own else (look(index), entry.label)
                else:
                    values = [results.value(dataset, entry.key, where.ood, metric) for metric in ("ece", "acc")]
                    pair = [value for value in values if value is not None]
                    style, label = look(index), entry.label
                _point(axes, style, label, pair, 9 if own else 6)
            origin = "published" if published_too else f"ours ({params.profile}, {params.protocol})"
            axes.set(xlabel="ECE (lower is better)", ylabel="accuracy", title=f"{where.title}, {origin}")
            axes.grid(alpha=0.3, linewidth=0.5)
    side_legend(figure, params)
    figure.suptitle("Accuracy-calibration trade-off", fontsize=9)
    return figure


def _point(axes: Axes, style: Mapping[str, Any], label: str, pair: list[Summary], size: int) -> None:
    if len(pair) < 2:
        return
    bars = []
    for summary in pair:
        low, high = within_unit(summary.mean, np.nan_to_num(summary.std))
        bars.append([[summary.mean - low], [high - summary.mean]])
    axes.errorbar(
        pair[0].mean,
        pair[1].mean,
        xerr=bars[0],
        yerr=bars[1],
        fmt=style["marker"],
        color=style["color"],
        markersize=size,
        markeredgecolor="black",
        markeredgewidth=0.5,
        elinewidth=0.6,
        label=label,
    )


def _panels(params: Params, height: float, columns: int = 2, **options: Any) -> tuple[Figure, list[Axes]]:
    """A panel per dataset and OOD level."""
    rows = -(-len(places(params)) // columns)
    figure = Figure(figsize=(WIDTH, height * rows + 0.4), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, **options).ravel()
    for axes in panels[len(places(params)) :]:
        axes.set_visible(False)
    return figure, list(panels)


def refusal_figure(params: Params, frame: pd.DataFrame) -> Figure:
    """The risk-coverage curve turned over: accuracy on what is answered against the share that is refused."""
    figure, panels = _panels(params, 2.6, sharey=True)
    for axes, where in zip(panels, places(params), strict=False):
        by_row = where.by_row(frame)
        for index, (row, label) in enumerate(shown_rows(params).items()):
            if row in by_row:
                means = by_row[row].groupby("refused")["accuracy"].mean()
                axes.plot(
                    100 * means.index, means, **look(index), markersize=3.5, markevery=2, linewidth=0.9, label=label
                )
        axes.set(xlabel="refused, %", ylabel="accuracy on the rest", title=where.title)
        axes.grid(alpha=0.3, linewidth=0.5)
    side_legend(figure, params)
    figure.suptitle(
        "Refusing the least certain records of the open test set, mean over seeds; an answer for an unseen class is "
        "wrong",
        fontsize=9,
    )
    return figure


def purity_figure(params: Params, results: Results) -> Figure:
    """Share of unseen classes among accepted pool records, a dot per seed, against the pool's own share."""
    figure, panels = _panels(params, 3.1, sharey=True)
    rows = trainings(params)
    for axes, where in zip(panels, places(params), strict=False):
        axes.axvline(where.ood / 100, color=GREY, linestyle="--", linewidth=1, label="share in the pool")
        for index, row in enumerate(rows):
            seeds = results.by_seed(where.dataset, row, where.ood, "accepted_unseen", "training")
            accepted = results.value(where.dataset, row, where.ood, "accepted", "training")
            axes.plot(list(seeds.values()), [index] * len(seeds), "o", color=BLUE, alpha=0.7, markersize=4)
            trained = results.value(where.dataset, row, where.ood, "acc")
            none = "no pseudo-labels" if trained else "not trained"
            text = f"{accepted.mean:.2f} accepted" if accepted else none
            axes.text(1.0, index, text, ha="right", va="center", fontsize=5.5, color=GREY)
        axes.set(xlim=(0, 1), xlabel="unseen share among accepted", title=where.title)
        axes.set_yticks(range(len(rows)), list(rows.values()))
        axes.set_ylim(len(rows) - 0.4, -0.6)
    figure.suptitle("Purity of accepted pseudo-labels, a dot per seed; dashed: what the pool holds", fontsize=9)
    return figure


def scatter_figure(params: Params, results: Results) -> Figure:
    """Our means against the published ones, for the datasets whose records are real (one at least)."""
    real = [where for where in places(params) if where.real]
    printed = published("benchmark")
    figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
    grid = figure.subplots(2, len(real), squeeze=False)
    for metric, line in zip(("acc", "ece"), grid, strict=True):
        for axes, where in zip(line, real, strict=True):
            _scatter(axes, params, results, where, metric, printed)
    side_legend(figure, params)
    figure.suptitle("Our means against the published ones; dotted: equal", fontsize=9)
    return figure


def _scatter(axes: Axes, params: Params, results: Results, where: Where, metric: str, printed: Any) -> None:
    for index, entry in enumerate(entries(params)):
        ours = results.value(where.dataset, entry.key, where.ood, metric)
        paper = printed.get((where.dataset, entry.method, where.ood, metric))
        if ours and paper:
            size = 9 if entry.method == PROPOSED else 6
            axes.plot(
                paper.mean, ours.mean, linestyle="", **look(index), markersize=size, markeredgecolor="black",
                markeredgewidth=0.5, label=entry.label,
            )  # fmt: skip
    low = min(axes.get_xlim()[0], axes.get_ylim()[0])
    high = max(axes.get_xlim()[1], axes.get_ylim()[1])
    axes.plot([low, high], [low, high], ":", color=GREY, linewidth=0.8)
    axes.set(xlabel=f"published {metric_name(metric)}", ylabel=f"our {metric_name(metric)}", title=where.title)
    axes.grid(alpha=0.3, linewidth=0.5)
