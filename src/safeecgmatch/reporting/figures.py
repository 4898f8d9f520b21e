"""The study's figures: readable in print, in grey and by colour-blind readers, and the same bytes every time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.progress import Progress
from safeecgmatch.reporting.names import dataset_name, in_table_order, method_name
from safeecgmatch.reporting.published import published
from safeecgmatch.reporting.reliability import BLUE, GREY, VERMILLION, draw_reliability
from safeecgmatch.reporting.results import Results, Selection
from safeecgmatch.reporting.statistics import Summary

# Okabe and Ito's palette; colour and marker cycle with different periods, so no two of 12 methods share both.
COLOURS = ["#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#8C6D00"]
MARKERS = ["o", "s", "^", "v", "D", "P", "X", "<", ">", "p", "h", "*"]
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,
}
CURVES = {
    "val_accuracy": ("validation accuracy", COLOURS[0], "-"),
    "mask_rate": ("accepted share of the pool batch", COLOURS[4], "--"),
    "pseudo_accuracy": ("accuracy of accepted pseudo-labels", COLOURS[3], "-."),
    "pseudo_ood_share": ("unseen share of accepted records", COLOURS[5], ":"),
}
PANELS_PER_ROW = 4
RASTER_DPI = 130
FEW_EVALUATIONS = 12  # so few that their points should be seen

Setting = tuple[str, int]


def methods_of(params: Params) -> list[str]:
    return in_table_order([*params.grid.methods, PROPOSED])


def main_selection(params: Params, method: str, ood: int) -> Selection:
    return Selection(method, ood, lambda_sum=params.lambda_sum if method == PROPOSED else None)


def tradeoff_figure(params: Params, results: Results, setting: Setting) -> Figure:
    """Accuracy against ECE of every method, the paper's numbers left and ours right; bars are one sample std."""
    dataset, ood = setting
    printed = published("benchmark")
    figure = Figure(figsize=(8.2, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for index, method in enumerate(methods_of(params)):
        selection = main_selection(params, method, ood)
        keys = [(dataset, method, ood, metric) for metric in ("ece", "acc")]
        paper = [printed[key].summary for key in keys if key in printed]
        ours = [results.entry(dataset, selection, metric).summary for metric in ("ece", "acc")]
        _point(left, index, method, paper)
        _point(right, index, method, [summary for summary in ours if summary is not None])
    for axes, title in ((left, "published"), (right, f"ours ({params.profile}, {params.protocol})")):
        axes.set(xlabel="ECE (lower is better)", ylabel="accuracy", title=title)
        axes.grid(alpha=0.3, linewidth=0.5)
    handles = {label: handle for axes in (left, right) for handle, label in zip(*_legend(axes), strict=True)}
    order = [name for name in (method_name(method).name for method in methods_of(params)) if name in handles]
    figure.legend([handles[name] for name in order], order, loc="outside right center", fontsize=7, frameon=False)
    figure.suptitle(f"Accuracy-calibration trade-off, {dataset_name(dataset).name}, {ood} % OOD", fontsize=9)
    return figure


def _legend(axes: Axes) -> tuple[list, list[str]]:
    return axes.get_legend_handles_labels()


def _point(axes: Axes, index: int, method: str, pair: list[Summary]) -> None:
    if len(pair) < 2:
        return
    ece, acc = pair
    spread = {"xerr": np.nan_to_num(ece.std), "yerr": np.nan_to_num(acc.std)}
    axes.errorbar(
        ece.mean,
        acc.mean,
        **spread,
        fmt=MARKERS[index % len(MARKERS)],
        color=COLOURS[index % len(COLOURS)],
        markersize=10 if method == PROPOSED else 6,
        markeredgecolor="black",
        markeredgewidth=0.5,
        elinewidth=0.6,
        label=method_name(method).name,
    )


def method_grid(
    params: Params, setting: Setting, title: str, labels: tuple[str, str], draw: Callable[[Axes, str], bool]
) -> Figure:
    """One small panel per method, one legend below; `draw` returns False where the method has no runs.

    Margins are set by hand, in inches: matplotlib's automatic layout would take longer than all the drawing.
    """
    methods = methods_of(params)
    rows = -(-len(methods) // PANELS_PER_ROW)
    width, height = 8.2, 1.7 * rows + 1.2
    figure = Figure(figsize=(width, height))
    panels = figure.subplots(rows, PANELS_PER_ROW, squeeze=False).ravel()
    figure.subplots_adjust(
        left=0.6 / width, right=1 - 0.1 / width, top=1 - 0.55 / height, bottom=0.75 / height, wspace=0.12, hspace=0.38
    )
    for index, (axes, method) in enumerate(zip(panels, methods, strict=False)):
        axes.set_title(method_name(method).name)
        axes.tick_params(labelsize=6)
        if not draw(axes, method):
            axes.text(0.5, 0.5, "no runs", ha="center", va="center", transform=axes.transAxes, color=GREY)
            axes.set(xticks=[], yticks=[])
        if index % PANELS_PER_ROW:
            axes.tick_params(labelleft=False)
    for axes in panels[len(methods) :]:
        axes.set_visible(False)
    dataset, ood = setting
    figure.suptitle(f"{title}, {dataset_name(dataset).name}, {ood} % OOD", fontsize=9, y=1 - 0.15 / height)
    figure.supxlabel(labels[0], fontsize=8, y=0.35 / height)
    figure.supylabel(labels[1], fontsize=8, x=0.12 / width)
    handles = {label: handle for axes in figure.axes for handle, label in zip(*_legend(axes), strict=True)}
    if handles:
        figure.legend(list(handles.values()), list(handles), loc="lower center", ncols=4, fontsize=7, frameon=False)
    return figure


def of_setting(frame: pd.DataFrame, setting: Setting) -> dict[str, pd.DataFrame]:
    """The rows of one dataset and OOD level, by method."""
    here = frame[(frame["dataset"] == setting[0]) & (frame["ood"] == setting[1])]
    return {str(method): rows for method, rows in here.groupby("method", sort=False)}


def reliability_grid(params: Params, results: Results, frame: pd.DataFrame, setting: Setting) -> Figure:
    by_method = of_setting(frame, setting)

    def draw(axes: Axes, method: str) -> bool:
        if method not in by_method:
            return False
        rows = by_method[method]
        draw_reliability(axes, rows["lower"], rows["confidence"], rows["accuracy"])
        summary = results.entry(setting[0], main_selection(params, method, setting[1]), "ece").summary
        if summary:
            axes.set_title(f"{method_name(method).name}, ECE {summary.mean:.3f}")
        return True

    return method_grid(params, setting, "Reliability on test, seeds pooled", ("confidence", "accuracy"), draw)


def score_grid(params: Params, results: Results, frame: pd.DataFrame, setting: Setting) -> Figure:
    by_method = of_setting(frame, setting)

    def draw(axes: Axes, method: str) -> bool:
        if method not in by_method:
            return False
        rows = by_method[method]
        edges = np.append(rows["lower"].to_numpy(), rows["upper"].to_numpy()[-1])
        for group, colour, hatch in (("seen", BLUE, ""), ("unseen", VERMILLION, "////")):
            share = rows[group].to_numpy() / max(rows[group].sum(), 1)
            axes.stairs(share, edges, fill=True, color=colour, alpha=0.35)
            axes.stairs(share, edges, color=colour, label=group, hatch=hatch, linewidth=0.9)
        summary = results.entry(setting[0], main_selection(params, method, setting[1]), "auroc").summary
        if summary:
            axes.set_title(f"{method_name(method).name}, AUROC {summary.mean:.2f}")
        axes.set_yticks([])
        axes.xaxis.set_major_locator(MaxNLocator(4))
        return True

    title = "Score for unseen classes on the open test set, seeds pooled"
    return method_grid(params, setting, title, ("score (higher: more likely unseen)", "share of records"), draw)


def training_grid(params: Params, frame: pd.DataFrame, setting: Setting) -> Figure:
    """Means over the seeds; curves that a method does not have are left out."""
    by_method = of_setting(frame, setting)

    def draw(axes: Axes, method: str) -> bool:
        if method not in by_method:
            return False
        means = by_method[method].groupby("iteration")[list(CURVES)].mean()
        dot = "." if len(means) < FEW_EVALUATIONS else ""
        for column, (label, colour, line) in CURVES.items():
            if means[column].notna().any():
                axes.plot(means.index, means[column], line, color=colour, label=label, linewidth=1.2, marker=dot)
        axes.axhline(setting[1] / 100, color=GREY, linewidth=0.6)
        axes.set(ylim=(0, 1), yticks=[0, 0.5, 1])
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
        return True

    title = "Training curves and pseudo-label quality, mean over seeds (grey: unseen share of the pool)"
    return method_grid(params, setting, title, ("iteration", "share"), draw)


def all_figures(
    params: Params, results: Results, plots: dict[str, pd.DataFrame], runs: pd.DataFrame
) -> Iterator[tuple[str, Figure]]:
    """File name and figure, one after the other, so that only one is in memory."""
    settings = [(dataset, ood) for dataset in params.grid.datasets for ood in params.grid.ood_levels]
    main = runs.loc[runs["stage"].str.startswith(("train@", "train_safeecgmatch@")), "cell"]
    training = plots["training"][plots["training"]["cell"].isin(main)]
    paper_setting = ("ptbxl", 30)
    yield "tradeoff", tradeoff_figure(params, results, paper_setting if paper_setting in settings else settings[0])
    for setting in settings:
        ending = f"{setting[0]}_{setting[1]}"
        yield f"reliability_{ending}", reliability_grid(params, results, plots["reliability"], setting)
        yield f"training_{ending}", training_grid(params, training, setting)
        yield f"ood_scores_{ending}", score_grid(params, results, plots["ood_scores"], setting)


def write_figures(
    folder: Path, params: Params, results: Results, plots: dict[str, pd.DataFrame], runs: pd.DataFrame
) -> None:
    """PNG and PDF of every figure, without dates, so that equal numbers give equal bytes."""
    total = 1 + 3 * len(params.grid.datasets) * len(params.grid.ood_levels)
    with rc_context(STYLE), Progress(total, "tables", "figures") as bar:
        for name, figure in all_figures(params, results, plots, runs):
            figure.savefig(folder / f"{name}.png", dpi=RASTER_DPI, metadata={"Software": None})
            figure.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})
            bar.advance()
