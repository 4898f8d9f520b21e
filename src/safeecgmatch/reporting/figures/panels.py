"""One panel per method: reliability, scores, training curves, confusion."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from safeecgmatch.config import Params
from safeecgmatch.metrics import BINS
from safeecgmatch.reporting.figures.style import BLUE, COLOURS, GREY, VERMILLION, Where, method_grid, within_unit
from safeecgmatch.reporting.names import method_name
from safeecgmatch.reporting.results import Results
from safeecgmatch.reporting.rows import main_runs

CURVES = {
    "val_accuracy": ("validation accuracy", COLOURS[0], "-"),
    "mask_rate": ("accepted share of the pool batch", COLOURS[4], "--"),
    "pseudo_accuracy": ("accuracy of accepted pseudo-labels", COLOURS[3], "-."),
    "pseudo_ood_share": ("unseen share of accepted records", COLOURS[5], ":"),
}
FEW_EVALUATIONS = 12  # so few that their points should be seen


def drawn_ece(bins: pd.DataFrame) -> float:
    """ECE of the bars that are drawn: all seeds pooled, so not the mean of the seeds' ECEs."""
    gap = (bins["accuracy"] - bins["confidence"]).abs()
    return float((bins["count"] * gap).sum() / bins["count"].sum())


def reliability_grid(params: Params, frame: pd.DataFrame, where: Where) -> Figure:
    """Bars: accuracy per bin of confidence, with the bin's number of records; the diagonal is perfect calibration."""
    by_method = where.by_method(frame)

    def draw(axes: Axes, method: str) -> bool:
        if method not in by_method:
            return False
        bins = by_method[method]
        axes.bar(
            bins["lower"], bins["accuracy"], 1 / BINS, align="edge", color=BLUE, alpha=0.45, edgecolor="white",
            linewidth=0.5, label="accuracy of the bin, with its number of records",
        )  # fmt: skip
        for lower, count in zip(bins["lower"], bins["count"], strict=True):
            axes.text(lower + 0.5 / BINS, 0.02, f"{count}", rotation=90, ha="center", va="bottom", fontsize=4.5)
        axes.plot([0, 1], [0, 1], "--", color=GREY, linewidth=0.8, label="perfect calibration")
        axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
        axes.set_title(f"{method_name(method).name}, ECE {drawn_ece(bins):.3f}")
        return True

    title = f"Reliability on test, seeds pooled; {where.title}"
    return method_grid(params, title, ("confidence", "accuracy"), draw)


def score_grid(params: Params, results: Results, frame: pd.DataFrame, where: Where) -> Figure:
    by_method = where.by_method(frame)

    def draw(axes: Axes, method: str) -> bool:
        if method not in by_method:
            return False
        rows = by_method[method]
        edges = np.append(rows["lower"].to_numpy(), rows["upper"].to_numpy()[-1])
        for group, colour, hatch in (("seen", BLUE, ""), ("unseen", VERMILLION, "////")):
            share = rows[group].to_numpy() / max(rows[group].sum(), 1)
            axes.stairs(share, edges, fill=True, color=colour, alpha=0.35)
            axes.stairs(share, edges, color=colour, label=f"{group} classes", hatch=hatch, linewidth=0.9)
        auroc = results.value(where.dataset, main_runs(params, method, where.ood), "auroc").summary
        sizes = f"N = {rows['seen'].sum():,} seen, {rows['unseen'].sum():,} unseen"
        axes.set_title(f"{method_name(method).name}" + (f", AUROC {auroc.mean:.2f}" if auroc else ""))
        axes.text(0.98, 0.97, sizes, transform=axes.transAxes, ha="right", va="top", fontsize=5)
        axes.set_ylim(top=1.15 * axes.get_ylim()[1])
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_locator(MaxNLocator(3))
        return True

    title = f"Score for unseen classes on the open test set, seeds pooled; {where.title}"
    labels = ("score (higher: more likely unseen)", "share of the group's records per bin")
    return method_grid(params, title, labels, draw, own_y=True)


def training_grid(params: Params, frame: pd.DataFrame, where: Where) -> Figure:
    """Means over the seeds with one standard deviation; curves that a method does not have are left out."""
    by_method = where.by_method(frame)

    def draw(axes: Axes, method: str) -> bool:
        if method not in by_method:
            return False
        grouped = by_method[method].groupby("iteration")[list(CURVES)]
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
        return True

    title = f"Training, mean ± standard deviation over seeds (grey line: unseen share of the pool); {where.title}"
    return method_grid(params, title, ("iteration", "share"), draw)


def confusion_grid(params: Params, frame: pd.DataFrame, where: Where) -> Figure:
    """Rows are true classes of the open test set, each a share of its records; nothing right can be said of unseen."""
    by_method = where.by_method(frame)

    def draw(axes: Axes, method: str) -> bool:
        if method not in by_method:
            return False
        rows = by_method[method]
        counts = rows.pivot_table(index="true", columns="predicted", values="count", sort=False)
        shares = counts.div(counts.sum(axis=1).clip(lower=1), axis=0)
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        for (i, j), value in np.ndenumerate(shares.to_numpy()):
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=6, color="w" if value > 0.6 else "k")
        axes.set_xticks(range(shares.shape[1]), list(shares.columns))
        axes.set_yticks(range(shares.shape[0]), list(shares.index))
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        return True

    sizes = where.rows_of(frame)
    first = sizes[sizes["method"] == sizes["method"].iloc[0]].groupby("true", sort=False)["count"].sum()
    records = ", ".join(f"{name} {count:,}" for name, count in first.items())
    title = f"Confusion on the open test set, seeds pooled, as share of each true class; {where.title}"
    return method_grid(params, title, (f"predicted (records: {records})", "true"), draw)
