"""All methods in one panel: trade-off, refusals, ROC curves, purity of accepted records, paper against ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from safeecgmatch.config import PROPOSED
from safeecgmatch.reporting.figures.style import (
    GREY,
    PALE,
    WIDTH,
    legend_below,
    line_of,
    look,
    set_headline,
    setting_panels,
    shown_rows,
    silence,
    within_unit,
)
from safeecgmatch.reporting.names import method_name, metric_name
from safeecgmatch.reporting.published import published
from safeecgmatch.reporting.rows import entries, trainings
from safeecgmatch.reporting.study import TRAINING, Study, Where, places

BEST = 5  # curves in colour, and SafeECGMatch at its best


def tradeoff_figure(study: Study, shown: list[Where]) -> Figure:
    """Accuracy against ECE of every method in every setting, bars one sample std; readings of SafeECGMatch that differ
    in one choice are joined. The paper's means are hollow, and shown only where ours come from the same data. The
    panels of a dataset share their axes.
    """
    figure, panels = setting_panels(study.params, shown, 3.3)
    first_of: dict[str, Axes] = {}
    for axes, where in panels:
        first = first_of.setdefault(where.dataset, axes)
        if first is not axes:
            axes.sharex(first)
            axes.sharey(first)
        _tradeoff(axes, study, where)
        axes.set(xlabel="ECE (lower is better)", ylabel="ACC", title=where.title)
        axes.xaxis.set_major_locator(MaxNLocator(6))
    legend_below(figure, study.params)
    hollow = "; hollow: published" if any(where.real for where in shown) else ""
    set_headline(
        figure,
        f"Accuracy against calibration (study {study.params.profile}, protocol {study.params.protocol}), mean ± "
        f"standard deviation over seeds{hollow}{silence(places(study.params), shown)}",
    )
    return figure


def _tradeoff(axes: Axes, study: Study, where: Where) -> None:
    printed = published("benchmark") if where.real else {}
    first_of = {
        entry.published: entry for entry in reversed(entries(study.params))
    }  # the paper prints SafeECGMatch once
    own: dict[str, list[float]] = {}
    for entry in entries(study.params):
        mark = {**look(entry.key), "markersize": 9 if entry.published == PROPOSED else 6, "linestyle": ""}
        keys = [(where.dataset, entry.published, where.ood, metric) for metric in ("ece", "acc")]
        paper = [printed[key].mean for key in keys if key in printed]
        ours = [
            value for metric in ("ece", "acc") if (value := study.value(where.dataset, entry.key, where.ood, metric))
        ]
        if len(paper) == 2 and entry == first_of[entry.published]:
            # Ours names the method, if it is there; SafeECGMatch has one hollow mark for all of its readings.
            named = entry.published == PROPOSED or len(ours) < 2
            label = f"{method_name(entry.published).name} (published)" if named else None
            axes.plot(*paper, **mark, markerfacecolor="none", markeredgewidth=1.1, alpha=0.8, zorder=1.5, label=label)
        if len(ours) < 2:
            continue
        x, y = (value.mean for value in ours)
        spans = [within_unit(value.mean, np.nan_to_num(value.std)) for value in ours]
        axes.plot(spans[0], [y, y], color=mark["color"], linewidth=0.6, alpha=0.6)
        axes.plot([x, x], spans[1], color=mark["color"], linewidth=0.6, alpha=0.6)
        axes.plot(x, y, **mark, markeredgecolor="black", markeredgewidth=0.5, zorder=3, label=entry.label)
        if entry.published == PROPOSED:
            own[entry.key] = [x, y]
    for (one, first), (other, second) in combinations(own.items(), 2):
        if set(one.split("@")) & set(other.split("@")):  # of one run, or of one branch
            axes.plot(*zip(first, second, strict=True), color=look(PROPOSED)["color"], linewidth=0.9)


def _best_curves(
    panels: list[tuple[Axes, Where]],
    study: Study,
    plot: str,
    columns: tuple[str, str],
    score: Callable[[Where, str, pd.Series], float],
) -> None:
    """The five rows of the highest score, and the best of SafeECGMatch, in their colours; the others grey."""
    labels = shown_rows(study.params)
    for axes, where in panels:
        curves = {
            row: lines.groupby(columns[0])[columns[1]].mean()
            for row, lines in where.by_row(study.plots[plot]).items()
            if row in labels
        }
        axes.set_title(where.title)
        scores = {row: score(where, row, curve) for row, curve in curves.items()}
        ranked = sorted(curves, key=lambda row: -scores[row])
        own = [row for row in ranked if row.startswith(PROPOSED)][:1]
        shown = [row for row in ranked if row in ranked[:BEST] or row in own]
        for row in (row for row in ranked if row not in shown):
            axes.plot(curves[row].index, curves[row], color=PALE, linewidth=0.7, zorder=1)
        for row in shown:
            label = f"{labels[row].replace(' (', chr(10) + '(')} {scores[row]:.3f}"
            every = max(len(curves[row]) // 8, 1)
            axes.plot(
                curves[row].index, curves[row], **line_of(row), markersize=3.5, markevery=every, linewidth=1.1,
                label=label,
            )  # fmt: skip
        if len(ranked) > len(shown):
            axes.plot([], [], color=PALE, label="the others")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=6.5, handlelength=1.6)


def refusal_figure(study: Study, shown: list[Where]) -> Figure:
    """The risk-coverage curve turned over: accuracy on what is answered against the share that is refused."""
    figure, panels = setting_panels(study.params, shown, 2.6, sharey=True)
    columns = ("refused", "accuracy")
    _best_curves(panels, study, "refusal", columns, lambda where, row, curve: float(curve.mean()))
    for axes, _ in panels:
        axes.set(xlabel="refused share", ylabel="accuracy on the rest")
        axes.label_outer(remove_inner_ticks=False)
    set_headline(
        figure,
        "Refusing the least certain records of the open test set, mean over seeds: the best five by mean accuracy (in "
        "the legend), and SafeECGMatch's best. An answer for an unseen class counts as wrong"
        f"{silence(places(study.params), shown)}",
    )
    return figure


def roc_figure(study: Study, shown: list[Where]) -> Figure:
    """How well unseen classes are told from seen ones: the share of unseen records that are found against false alarms,
    mean over seeds at each share of false alarms."""

    def auroc(where: Where, row: str, curve: pd.Series) -> float:
        known = study.value(where.dataset, row, where.ood, "auroc")
        return known.mean if known else float(np.trapezoid(curve, curve.index))

    figure, panels = setting_panels(study.params, shown, 2.8, subplot_kw={"box_aspect": 1})
    _best_curves(panels, study, "roc", ("fpr", "tpr"), auroc)
    for axes, _ in panels:
        axes.plot([0, 1], [0, 1], ":", color=GREY, linewidth=0.8)
        axes.set(xlabel="seen records called unseen", ylabel="unseen records found")
        axes.set(xlim=(0, 1), ylim=(0, 1.01))
    set_headline(
        figure,
        "Unseen classes in the open test set: ROC curves, mean over seeds; the best five, with AUROC, and "
        f"SafeECGMatch's best{silence(places(study.params), shown)}",
    )
    return figure


def purity_figure(study: Study, shown: list[Where]) -> Figure:
    """Share of unseen classes among accepted pool records, a dot per seed, against the pool's own share."""
    figure, panels = setting_panels(study.params, shown, 3.1, sharey=True)
    rows = trainings(study.params)
    for axes, where in panels:
        axes.axvline(where.ood / 100, color=GREY, linestyle="--", linewidth=1)
        for index, row in enumerate(rows):
            seeds = list(study.seeds(where.dataset, row, where.ood, "accepted_unseen", TRAINING).values())
            accepted = study.value(where.dataset, row, where.ood, "accepted", TRAINING)
            axes.plot(seeds, [index] * len(seeds), **look(row), linestyle="", alpha=0.8, markersize=5)
            trained = study.value(where.dataset, row, where.ood, "acc")
            text = f"{accepted.mean:.2f}" if accepted else "none" if trained else "no runs"
            axes.text(1.02, index, text, transform=axes.get_yaxis_transform(), va="center", fontsize=6, color=GREY)
        axes.text(1.02, -0.9, "accepted", transform=axes.get_yaxis_transform(), va="center", fontsize=6, color=GREY)
        axes.set(xlim=(-0.02, 1.02), xlabel="unseen share among accepted", title=where.title)
        axes.set_yticks(range(len(rows)), list(rows.values()))
        axes.set_ylim(len(rows) - 0.4, -0.6)
    set_headline(
        figure,
        "Unseen share among the pool records that were accepted, a mark per seed (dashed: the pool's); right: accepted "
        f"share of the pool{silence(places(study.params), shown)}",
    )
    return figure


def scatter_figure(study: Study, shown: list[Where]) -> Figure:
    """Our means against the published ones, for settings whose records are real."""
    printed = published("benchmark")
    figure = Figure(figsize=(WIDTH, 2 * min(WIDTH / len(shown), 2.5) + 1.7), layout="constrained")
    grid = figure.subplots(2, len(shown), squeeze=False)
    for metric, line in zip(("acc", "ece"), grid, strict=True):
        for axes, where in zip(line, shown, strict=True):
            _scatter(axes, study, where, metric, printed)
    legend_below(figure, study.params)
    real = [where for where in places(study.params) if where.real]
    set_headline(figure, f"Our means against the published ones; dotted: equal{silence(real, shown)}")
    return figure


def _scatter(axes: Axes, study: Study, where: Where, metric: str, printed: Mapping[Any, Any]) -> None:
    ends = []
    for entry in entries(study.params):
        ours = study.value(where.dataset, entry.key, where.ood, metric)
        paper = printed.get((where.dataset, entry.published, where.ood, metric))
        if ours and paper:
            ends += [ours.mean, paper.mean]
            mark = {**look(entry.key), "markersize": 8 if entry.published == PROPOSED else 6, "linestyle": ""}
            axes.plot(paper.mean, ours.mean, **mark, markeredgecolor="black", markeredgewidth=0.5, label=entry.label)
    axes.set(title=where.title.replace(", ", "\n"), box_aspect=1)
    room = 0.06 * (max(ends) - min(ends)) + 0.005
    both = (min(ends) - room, max(ends) + room)
    axes.plot(both, both, ":", color=GREY, linewidth=0.8)
    axes.set(xlim=both, ylim=both, xlabel=f"published {metric_name(metric)}", ylabel=f"our {metric_name(metric)}")
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_locator(MaxNLocator(3))
