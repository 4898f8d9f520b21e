"""All methods in one panel: trade-off, refusals, purity of accepted records, paper against ours, paired gains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.reporting.claims import load_claims
from safeecgmatch.reporting.figures.style import (
    BLUE,
    GREY,
    VERMILLION,
    WIDTH,
    Where,
    look,
    places,
    say_nothing,
    side_legend,
    within_unit,
)
from safeecgmatch.reporting.names import method_name, metric_name
from safeecgmatch.reporting.published import published
from safeecgmatch.reporting.results import Results
from safeecgmatch.reporting.rows import main_runs, methods
from safeecgmatch.reporting.statistics import Summary

READING_MARKERS = "osD^v"
RELATIONS = {"better": BLUE, "worse": VERMILLION, "equivalent": "#009E73", "inconclusive": GREY}
UNPAIRED = "fewer than two pairs of seeds"


def is_real(params: Params, dataset: str) -> bool:
    return params.data.source(dataset).source != "phantom"


def tradeoff_figure(params: Params, results: Results) -> Figure:
    """Accuracy against ECE of every method in every setting, bars one sample std; the paper's numbers above ours, but
    only where ours come from the same data. The panels of a dataset share their axes.
    """
    levels = params.grid.ood_levels
    lines = [
        (dataset, published_too)
        for dataset in params.grid.datasets
        for published_too in ([True, False] if is_real(params, dataset) else [False])
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
            for index, method in enumerate(methods(params)):
                if published_too:
                    keys = [(dataset, method, where.ood, metric) for metric in ("ece", "acc")]
                    pair = [printed[key].summary for key in keys if key in printed]
                else:
                    runs = main_runs(params, method, where.ood)
                    values = [results.value(dataset, runs, metric).summary for metric in ("ece", "acc")]
                    pair = [value for value in values if value is not None]
                _point(axes, index, method, pair)
            origin = "published" if published_too else f"ours ({params.profile}, {params.protocol})"
            axes.set(xlabel="ECE (lower is better)", ylabel="accuracy", title=f"{where.title}, {origin}")
            axes.grid(alpha=0.3, linewidth=0.5)
    side_legend(figure, params)
    figure.suptitle("Accuracy-calibration trade-off", fontsize=9)
    return figure


def _point(axes: Axes, index: int, method: str, pair: list[Summary]) -> None:
    if len(pair) < 2:
        return
    bars = []
    for summary in pair:
        low, high = within_unit(summary.mean, np.nan_to_num(summary.std))
        bars.append([[summary.mean - low], [high - summary.mean]])
    style = look(index)
    axes.errorbar(
        pair[0].mean,
        pair[1].mean,
        xerr=bars[0],
        yerr=bars[1],
        fmt=style["marker"],
        color=style["color"],
        markersize=10 if method == PROPOSED else 6,
        markeredgecolor="black",
        markeredgewidth=0.5,
        elinewidth=0.6,
        label=method_name(method).name,
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
        by_method = where.by_method(frame)
        for index, method in enumerate(methods(params)):
            if method in by_method:
                means = by_method[method].groupby("refused")["accuracy"].mean()
                axes.plot(
                    100 * means.index, means, **look(index), markersize=3.5, markevery=2, linewidth=0.9,
                    label=method_name(method).name,
                )  # fmt: skip
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
    figure, panels = _panels(params, 2.9, sharey=True)
    for axes, where in zip(panels, places(params), strict=False):
        axes.axvline(where.ood / 100, color=GREY, linestyle="--", linewidth=1, label="share in the pool")
        for index, method in enumerate(methods(params)):
            runs = main_runs(params, method, where.ood)
            seeds = results.by_seed(where.dataset, runs, "accepted_unseen", "training")
            accepted = results.value(where.dataset, runs, "accepted", "training").summary
            axes.plot(list(seeds.values()), [index] * len(seeds), "o", color=BLUE, alpha=0.7, markersize=4)
            trained = results.value(where.dataset, runs, "acc").summary
            none = "no pseudo-labels" if trained else "not trained"
            text = f"{accepted.mean:.2f} accepted" if accepted else none
            axes.text(1.0, index, text, ha="right", va="center", fontsize=5.5, color=GREY)
        axes.set(xlim=(0, 1), xlabel="unseen share among accepted", title=where.title)
        axes.set_yticks(range(len(methods(params))), [method_name(method).name for method in methods(params)])
        axes.set_ylim(len(methods(params)) - 0.4, -0.6)
    figure.suptitle("Purity of accepted pseudo-labels, a dot per seed; dashed: what the pool holds", fontsize=9)
    return figure


def scatter_figure(params: Params, results: Results) -> Figure:
    """Our means against the published ones, for the datasets whose records are real (one at least)."""
    real = [where for where in places(params) if is_real(params, where.dataset)]
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
    for index, method in enumerate(methods(params)):
        ours = results.value(where.dataset, main_runs(params, method, where.ood), metric).summary
        paper = printed.get((where.dataset, method, where.ood, metric))
        if ours and paper:
            size = 9 if method == PROPOSED else 6
            axes.plot(
                paper.mean, ours.mean, linestyle="", **look(index), markersize=size, markeredgecolor="black",
                markeredgewidth=0.5, label=method_name(method).name,
            )  # fmt: skip
    low = min(axes.get_xlim()[0], axes.get_ylim()[0])
    high = max(axes.get_xlim()[1], axes.get_ylim()[1])
    axes.plot([low, high], [low, high], ":", color=GREY, linewidth=0.8)
    axes.set(xlabel=f"published {metric_name(metric)}", ylabel=f"our {metric_name(metric)}", title=where.title)
    axes.grid(alpha=0.3, linewidth=0.5)


def forest_figure(params: Params, gains: pd.DataFrame) -> Figure:
    """Paired differences of SafeECGMatch to each rival with 95 % intervals, one symbol per reading; right is better."""
    metrics, margin = ["acc", "ece"], load_claims().margin
    gains = gains[(gains["scaling"] == "none") & gains["metric"].isin(metrics)]
    rivals = [method for method in methods(params) if method in set(gains["rival"])]
    readings = list(dict.fromkeys(gains["reading"]))
    shown = [(where, metric) for where in places(params) for metric in metrics]
    columns = 2 if len(shown) <= 4 else 4
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(WIDTH, 3.0 * rows + 0.8), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    for axes, (where, metric) in zip(panels, shown, strict=False):
        members = where.rows_of(gains[gains["metric"] == metric])
        axes.axvline(0, color=GREY, linewidth=0.8)
        axes.axvspan(-margin, margin, color=GREY, alpha=0.12, linewidth=0)
        for row in members.to_dict("records"):
            _interval(axes, row, rivals, readings)
        if members.empty:
            say_nothing(axes, UNPAIRED)
        axes.set_yticks(range(len(rivals)), [method_name(rival).name for rival in rivals])
        axes.set_ylim(len(rivals) - 0.4, -0.6)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set(xlabel=f"gain in {metric_name(metric)}", title=where.title)
    handles = [axes_handle(readings.index(reading), "black", reading or "SafeECGMatch") for reading in readings] + [
        axes_handle(0, colour, relation) for relation, colour in RELATIONS.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=7, frameon=False)
    generated = bool(gains["generated"].any()) if len(gains) else False
    warning = "generated data" if generated else f"grey band: margin of {margin:g}"
    figure.suptitle(
        f"Gain of SafeECGMatch over each method (right: better), paired by seed and record, 95 % intervals; {warning}",
        fontsize=9,
    )
    return figure


def axes_handle(reading: int, colour: str, label: str) -> Any:
    return Line2D([], [], color=colour, marker=READING_MARKERS[reading % 5], linestyle="", markersize=4, label=label)


def _interval(axes: Axes, row: Mapping[Any, Any], rivals: list[str], readings: list[str]) -> None:
    if row["rival"] not in rivals or math.isnan(row["estimate"]):
        return
    which = readings.index(row["reading"])
    height = rivals.index(row["rival"]) + 0.7 * ((which + 0.5) / len(readings) - 0.5)
    colour = RELATIONS.get(row["relation"], GREY)
    if not math.isnan(row["low"]):
        axes.plot([row["low"], row["high"]], [height, height], color=colour, linewidth=1)
    axes.plot(row["estimate"], height, READING_MARKERS[which % 5], color=colour, markersize=3)
