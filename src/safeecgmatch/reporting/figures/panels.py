"""Small panels for each row of Table 3: reliability, training curves, confusion, budget."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from safeecgmatch.metrics import BINS
from safeecgmatch.reporting.figures.style import (
    BLUE,
    GREEN,
    GREY,
    VERMILLION,
    look,
    panel_grid,
    shown_rows,
    within_unit,
)
from safeecgmatch.reporting.names import metric_name
from safeecgmatch.reporting.published import published
from safeecgmatch.reporting.rows import entries, trainings
from safeecgmatch.reporting.study import Study, Where

CURVES = {
    "val_accuracy": ("validation accuracy", "black", "-"),
    "mask_rate": ("accepted share of the pool batch", BLUE, "--"),
    "pseudo_accuracy": ("accuracy of accepted pseudo-labels", GREEN, "-."),
    "pseudo_ood_share": ("unseen share of accepted records", VERMILLION, ":"),
}
FEW_EVALUATIONS = 12  # so few that their points should be seen


def pooled_bins(bins: pd.DataFrame) -> pd.DataFrame:
    """The bins of all seeds together."""
    weighted = bins.assign(**{name: bins[name] * bins["count"] for name in ("confidence", "accuracy")})
    sums = weighted.groupby("lower")[["count", "confidence", "accuracy"]].sum()
    return sums.assign(confidence=sums["confidence"] / sums["count"], accuracy=sums["accuracy"] / sums["count"])


def mean_ece(bins: pd.DataFrame) -> float:
    """Mean over the seeds, as in the tables; not the ECE of the seeds' pooled bins."""
    gaps = bins["count"] * (bins["accuracy"] - bins["confidence"]).abs()
    return float((gaps.groupby(bins["seed"]).sum() / bins.groupby("seed")["count"].sum()).mean())


def reliability_grid(study: Study, where: Where) -> Figure:
    """Bars: accuracy per bin of confidence, with the bin's number of records; the diagonal is perfect calibration."""

    def draw(axes: Axes, row: str, bins: pd.DataFrame) -> None:
        pooled = pooled_bins(bins)
        axes.bar(
            pooled.index, pooled["accuracy"], 1 / BINS, align="edge", color=look(row)["color"], alpha=0.5,
            edgecolor="white", linewidth=0.5,
        )  # fmt: skip
        for lower, count in zip(pooled.index, pooled["count"], strict=True):
            axes.text(lower + 0.5 / BINS, 0.02, f"{count}", rotation=90, ha="center", va="bottom", fontsize=4.5)
        axes.plot([0, 1], [0, 1], "--", color=GREY, linewidth=0.8)
        axes.set(xlim=(0, 1), ylim=(0, 1), yticks=[0, 0.5, 1])
        axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        paper = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.8}
        axes.text(0.04, 0.95, f"ECE {mean_ece(bins):.3f}", transform=axes.transAxes, va="top", fontsize=6, bbox=paper)

    title = f"Reliability on test: bins of all seeds, with their records; ECE: mean over seeds. {where.title}"
    below = "confidence (dashed: perfect calibration)"
    return panel_grid(
        shown_rows(study.params), where.by_row(study.plots["reliability"]), title, below, {"accuracy": draw}
    )


def training_grid(study: Study, where: Where) -> Figure:
    """Means over the seeds with one standard deviation; curves that a method does not have are left out."""

    def draw(axes: Axes, row: str, lines: pd.DataFrame) -> None:
        grouped = lines.groupby("iteration")[list(CURVES)]
        means, spread = grouped.mean(), grouped.std()
        dot = "." if len(means) < FEW_EVALUATIONS else ""
        for column, (label, colour, line) in CURVES.items():
            if means[column].notna().any():
                axes.plot(
                    means.index, means[column], line, color=colour, label=label, linewidth=1, marker=dot, markersize=3
                )
                low, high = within_unit(means[column], spread[column])
                axes.fill_between(means.index, low, high, color=colour, alpha=0.13, linewidth=0)
        axes.axhline(where.ood / 100, color=GREY, linewidth=0.6)
        axes.set(ylim=(-0.04, 1.04), yticks=[0, 0.5, 1])  # a line at 0 or 1 is seen whole
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))

    title = f"Training, mean ± standard deviation over seeds (grey line: unseen share of the pool). {where.title}"
    return panel_grid(
        trainings(study.params), where.by_row(study.plots["training"]), title, "iteration", {"share": draw}, legend=True
    )


def budget_grid(study: Study, where: Where) -> Figure:
    """Accuracy and ECE on test at every epoch, a line per seed, a dot where validation chose; the paper's dashed."""
    here = where.rows_of(study.plots["budget"])
    lines, methods = {}, {}
    for entry in entries(study.params):
        run, _, branch = entry.key.partition("@")
        rows = here[here["row"] == run]
        rows = rows[rows["branch"] == branch] if branch else rows[rows["reported"].astype(bool)]
        methods[entry.key] = entry.published
        if len(rows):
            lines[entry.key] = rows
    printed = published("benchmark") if where.real else {}
    drawn = pd.concat(lines.values()) if lines else here

    def papers(row: str, metric: str) -> list[float]:
        key = (where.dataset, methods[row], where.ood, metric)
        return [printed[key].mean] if key in printed else []

    def draw(axes: Axes, row: str, epochs: pd.DataFrame, metric: str) -> None:
        colour = look(row)["color"]
        for _, seed in epochs.groupby("seed"):
            axes.plot(seed["epoch"], seed[metric], color=colour, linewidth=0.5, alpha=0.6)
            chosen = seed[seed["chosen"].astype(bool)]
            axes.plot(chosen["epoch"], chosen[metric], "o", color=colour, markersize=3)
        means = epochs.groupby("epoch")[metric].mean()
        axes.plot(means.index, means, color=colour, linewidth=1.4)
        for mean in papers(row, metric):
            axes.axhline(mean, color="black", linestyle="--", linewidth=0.8)
        known = [*drawn[metric], *(mean for other in lines for mean in papers(other, metric))]  # one scale for all
        room = 0.05 * (max(known) - min(known)) + 0.005
        axes.set_ylim(max(min(known) - room, 0), min(max(known) + room, 1))
        axes.set_xlim(0.5, drawn["epoch"].max() + 0.5)
        axes.yaxis.set_major_locator(MaxNLocator(3))
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))

    dashed = ", dashed: published (50 epochs)" if where.real else ""
    title = f"Test at every epoch; thin: seed, thick: mean, dot: chosen by validation{dashed}. {where.title}"
    draws = {metric_name(metric): partial(draw, metric=metric) for metric in ("acc", "ece")}
    return panel_grid(shown_rows(study.params), lines, title, "epoch", draws)


def confusion_grid(study: Study, where: Where) -> Figure:
    """Rows are true classes of the open test set, each a share of its records; nothing right can be said of unseen."""
    frame = study.plots["confusion"]
    by_row = where.by_row(frame)

    def draw(axes: Axes, row: str, lines: pd.DataFrame) -> None:
        counts = lines.pivot_table(index="true", columns="predicted", values="count", aggfunc="sum", sort=False)
        shares = counts.div(counts.sum(axis=1).clip(lower=1), axis=0)
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        for (i, j), value in np.ndenumerate(shares.to_numpy()):
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=6, color="w" if value > 0.6 else "k")
        axes.set_xticks(range(shares.shape[1]), list(shares.columns))
        axes.set_yticks(range(shares.shape[0]), list(shares.index))
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.grid(visible=False)

    most = max(by_row.values(), key=lambda lines: int(lines["count"].sum()), default=where.rows_of(frame))
    classes = most.groupby("true", sort=False)["count"].sum()
    records = ", ".join(f"{name} {count:,}" for name, count in classes.items())
    title = f"Confusion on the open test set, all seeds, as share of each true class. {where.title}"
    return panel_grid(shown_rows(study.params), by_row, title, f"predicted (records: {records})", {"true": draw})
