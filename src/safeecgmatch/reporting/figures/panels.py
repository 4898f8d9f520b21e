"""One panel per row of Table 3: reliability, scores, training curves, confusion, budget."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from safeecgmatch.config import Params
from safeecgmatch.metrics import BINS
from safeecgmatch.reporting.figures.style import (
    BLUE,
    COLOURS,
    GREY,
    VERMILLION,
    Where,
    panel_grid,
    shown_rows,
    within_unit,
)
from safeecgmatch.reporting.names import metric_name
from safeecgmatch.reporting.published import published
from safeecgmatch.reporting.results import Results
from safeecgmatch.reporting.rows import entries, trainings

CURVES = {
    "val_accuracy": ("validation accuracy", COLOURS[0], "-"),
    "mask_rate": ("accepted share of the pool batch", COLOURS[4], "--"),
    "pseudo_accuracy": ("accuracy of accepted pseudo-labels", COLOURS[3], "-."),
    "pseudo_ood_share": ("unseen share of accepted records", COLOURS[5], ":"),
}
FEW_EVALUATIONS = 12  # so few that their points should be seen
BUDGET_COLOURS = {"acc": BLUE, "ece": VERMILLION}


def drawn_ece(bins: pd.DataFrame) -> float:
    """ECE of the bars that are drawn: all seeds pooled, so not the mean of the seeds' ECEs."""
    gap = (bins["accuracy"] - bins["confidence"]).abs()
    return float((bins["count"] * gap).sum() / bins["count"].sum())


def reliability_grid(params: Params, frame: pd.DataFrame, where: Where) -> Figure:
    """Bars: accuracy per bin of confidence, with the bin's number of records; the diagonal is perfect calibration."""

    def draw(axes: Axes, row: str, bins: pd.DataFrame) -> None:
        axes.bar(
            bins["lower"], bins["accuracy"], 1 / BINS, align="edge", color=BLUE, alpha=0.45, edgecolor="white",
            linewidth=0.5, label="accuracy of the bin, with its number of records",
        )  # fmt: skip
        for lower, count in zip(bins["lower"], bins["count"], strict=True):
            axes.text(lower + 0.5 / BINS, 0.02, f"{count}", rotation=90, ha="center", va="bottom", fontsize=4.5)
        axes.plot([0, 1], [0, 1], "--", color=GREY, linewidth=0.8, label="perfect calibration")
        axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
        axes.text(0.03, 0.97, f"ECE {drawn_ece(bins):.3f}", transform=axes.transAxes, va="top", fontsize=6)

    title = f"Reliability on test, seeds pooled; {where.title}"
    return panel_grid(shown_rows(params), where.by_row(frame), title, ("confidence", "accuracy"), draw)


def score_grid(params: Params, results: Results, frame: pd.DataFrame, where: Where) -> Figure:
    def draw(axes: Axes, row: str, lines: pd.DataFrame) -> None:
        edges = np.append(lines["lower"].to_numpy(), lines["upper"].to_numpy()[-1])
        for group, colour, hatch in (("seen", BLUE, ""), ("unseen", VERMILLION, "////")):
            share = lines[group].to_numpy() / max(lines[group].sum(), 1)
            axes.stairs(share, edges, fill=True, color=colour, alpha=0.35)
            axes.stairs(share, edges, color=colour, label=f"{group} classes", hatch=hatch, linewidth=0.9)
        auroc = results.value(where.dataset, row, where.ood, "auroc")
        area = f"AUROC {auroc.mean:.2f}, " if auroc else ""
        sizes = f"{area}N = {lines['seen'].sum():,} seen, {lines['unseen'].sum():,} unseen"
        axes.text(0.98, 0.97, sizes, transform=axes.transAxes, ha="right", va="top", fontsize=5)
        axes.set_ylim(top=1.15 * axes.get_ylim()[1])
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_locator(MaxNLocator(3))

    title = f"Score for unseen classes on the open test set, seeds pooled; {where.title}"
    labels = ("score (higher: more likely unseen)", "share of the group's records per bin")
    return panel_grid(shown_rows(params), where.by_row(frame), title, labels, draw, own_y=True)


def training_grid(params: Params, frame: pd.DataFrame, where: Where) -> Figure:
    """Means over the seeds with one standard deviation; curves that a method does not have are left out."""

    def draw(axes: Axes, row: str, lines: pd.DataFrame) -> None:
        grouped = lines.groupby("iteration")[list(CURVES)]
        means, spread = grouped.mean(), grouped.std()
        dot = "." if len(means) < FEW_EVALUATIONS else ""
        for column, (label, colour, line) in CURVES.items():
            if means[column].notna().any():
                axes.plot(means.index, means[column], line, color=colour, label=label, linewidth=1.2, marker=dot)
                low, high = within_unit(means[column], spread[column])
                axes.fill_between(means.index, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.axhline(where.ood / 100, color=GREY, linewidth=0.6)
        axes.set(ylim=(0, 1), yticks=[0, 0.5, 1])
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))

    title = f"Training, mean ± standard deviation over seeds (grey line: unseen share of the pool); {where.title}"
    return panel_grid(trainings(params), where.by_row(frame), title, ("iteration", "share"), draw)


def budget_grid(params: Params, frame: pd.DataFrame, where: Where) -> Figure:
    """Accuracy and ECE on test at every epoch, a line per seed, a dot where validation chose; the paper's as lines."""
    here = where.rows_of(frame)
    lines = {}
    for entry in entries(params):
        rows = here[here["row"] == entry.row]
        rows = rows[rows["branch"] == entry.branch] if entry.branch else rows[rows["reported"]]
        if len(rows):
            lines[entry.key] = rows
    printed = published("benchmark")
    methods = {entry.key: entry.method for entry in entries(params)}

    def draw(axes: Axes, row: str, epochs: pd.DataFrame) -> None:
        for metric, colour in BUDGET_COLOURS.items():
            name = metric_name(metric)
            for _, seed in epochs.groupby("seed"):
                axes.plot(seed["epoch"], seed[metric], color=colour, linewidth=0.6, alpha=0.5)
                chosen = seed[seed["chosen"]]
                axes.plot(chosen["epoch"], chosen[metric], ".", color=colour, markersize=5, label=f"{name}, chosen")
            means = epochs.groupby("epoch")[metric].mean()
            axes.plot(means.index, means, color=colour, linewidth=1.4, label=f"{name}, mean over seeds")
            key = (where.dataset, methods[row], where.ood, metric)
            if key in printed and where.real:
                axes.axhline(printed[key].mean, color=colour, linestyle="--", linewidth=0.8, label=f"{name}, published")
        axes.set(ylim=(0, 1), yticks=[0, 0.5, 1])
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.grid(alpha=0.3, linewidth=0.5)

    title = f"Budget: what each epoch would have reported on test (published: after 50 epochs); {where.title}"
    return panel_grid(shown_rows(params), lines, title, ("epoch", "ACC and ECE on test"), draw)


def confusion_grid(params: Params, frame: pd.DataFrame, where: Where) -> Figure:
    """Rows are true classes of the open test set, each a share of its records; nothing right can be said of unseen."""
    by_row = where.by_row(frame)

    def draw(axes: Axes, row: str, lines: pd.DataFrame) -> None:
        counts = lines.pivot_table(index="true", columns="predicted", values="count", sort=False)
        shares = counts.div(counts.sum(axis=1).clip(lower=1), axis=0)
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        for (i, j), value in np.ndenumerate(shares.to_numpy()):
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=6, color="w" if value > 0.6 else "k")
        axes.set_xticks(range(shares.shape[1]), list(shares.columns))
        axes.set_yticks(range(shares.shape[0]), list(shares.index))
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)

    most = max(by_row.values(), key=lambda lines: int(lines["count"].sum()), default=where.rows_of(frame))
    classes = most.groupby("true", sort=False)["count"].sum()
    records = ", ".join(f"{name} {count:,}" for name, count in classes.items()) or "none"
    title = f"Confusion on the open test set, seeds pooled, as share of each true class; {where.title}"
    return panel_grid(shown_rows(params), by_row, title, (f"predicted (records: {records})", "true"), draw)
