"""Paired differences with their intervals: over each method, and of the two questions that the paper leaves open."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from safeecgmatch.config import Params
from safeecgmatch.reporting.claims import load_claims
from safeecgmatch.reporting.figures.style import (
    BLUE,
    GREEN,
    GREY,
    VERMILLION,
    WIDTH,
    columns_of,
    look,
    set_headline,
    silence,
)
from safeecgmatch.reporting.names import method_name, metric_name
from safeecgmatch.reporting.rows import effect_rows, methods
from safeecgmatch.reporting.study import Study, Where, places

RELATIONS = {"better": BLUE, "worse": VERMILLION, "equivalent": GREEN, "inconclusive": GREY}
UNPAIRED = "fewer than two pairs of seeds"
METRICS = ["acc", "ece"]
WIDEST = 4  # a panel shows this many times the largest estimate; an interval may leave it


def estimates(gains: pd.DataFrame) -> pd.DataFrame:
    """The paired differences that the forest shows."""
    return gains[(gains["scaling"] == "none") & gains["metric"].isin(METRICS) & gains["estimate"].notna()]


def with_effects(study: Study) -> list[Where]:
    """Settings in which two readings or variants of SafeECGMatch can be compared."""
    keys = [row.key for row in effect_rows(study.params)]
    return [
        where
        for where in places(study.params)
        if any(study.gain(where.dataset, key, where.ood, metric) for key in keys for metric in METRICS)
    ]


def gain_panels(
    params: Params, shown: list[Where], names: list[str], height: float
) -> tuple[Figure, list[tuple[Axes, Where, str]]]:
    """A panel per setting and metric, a line per name, the margin as a grey band."""
    margin = load_claims().margin
    columns = columns_of(params, shown)
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(WIDTH, height * rows + 0.9), layout="constrained")
    panels = list(figure.subplots(rows, len(METRICS) * columns, squeeze=False, sharey=True).ravel())
    asked = [(where, metric) for where in shown for metric in METRICS]
    for empty in panels[len(asked) :]:
        empty.remove()
    for axes, (where, metric) in zip(panels, asked, strict=False):
        axes.axvline(0, color=GREY, linewidth=0.8)
        axes.axvspan(-margin, margin, color=GREY, alpha=0.15, linewidth=0)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
        axes.grid(visible=False)
        for line in range(1, len(names), 2):
            axes.axhspan(line - 0.5, line + 0.5, color=GREY, alpha=0.06, linewidth=0)
        axes.set_title(f"{where.data}\n{where.ood} % OOD, {metric_name(metric)}")
    return figure, [(axes, *place) for axes, place in zip(panels, asked, strict=False)]


def _scale(axes: Axes, estimates: list[float], ends: list[float]) -> None:
    """Around zero; an interval of two or three seeds may be too wide to show beside the estimates."""
    widest = max(map(abs, [*estimates, *ends]))
    reach = 1.05 * max(min(widest, WIDEST * max(map(abs, estimates))), 3 * load_claims().margin)
    axes.set_xlim(-reach, reach)
    axes.xaxis.set_major_locator(MaxNLocator(4))


def effects_figure(study: Study, shown: list[Where]) -> Figure:
    """The 2 x 2: what the temperature rule and the frequency branch are worth, beside what nothing is worth."""
    effects = {row.key: row for row in effect_rows(study.params)}
    sections = list(dict.fromkeys(row.section for row in effects.values()))
    colours = dict(zip(sections, (BLUE, VERMILLION, GREY), strict=False))
    figure, panels = gain_panels(study.params, shown, [row.label for row in effects.values()], 2.2)
    for axes, where, metric in panels:
        estimates, ends = [], []
        for height, row in enumerate(effects.values()):
            gain = study.gain(where.dataset, row.key, where.ood, metric)
            if gain:
                axes.plot([gain.low, gain.high], [height, height], color=colours[row.section], linewidth=1.2)
                axes.plot(gain.difference.estimate, height, "o", color=colours[row.section], markersize=4)
                estimates.append(gain.difference.estimate)
                ends += [end for end in (gain.low, gain.high) if not math.isnan(end)]
        _scale(axes, estimates, ends)
    handles = [Line2D([], [], color=colour, marker="o", markersize=4, label=name) for name, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    set_headline(
        figure,
        "SafeECGMatch: gain by the temperature rule and the frequency branch (right: better), 95 % intervals; band: "
        f"margin of {load_claims().margin:g}{silence(places(study.params), shown, UNPAIRED)}",
    )
    return figure


def forest_figure(params: Params, gains: pd.DataFrame, shown: list[Where]) -> Figure:
    """Paired differences of SafeECGMatch to each rival with 95 % intervals, one symbol per reading; right is better."""
    gains = estimates(gains)
    rivals = [method for method in methods(params) if method in set(gains["rival"])]
    gains = gains[gains["rival"].isin(rivals)]
    readings = dict(zip(gains["candidate"], gains["reading"], strict=True))
    figure, panels = gain_panels(params, shown, [method_name(rival).name for rival in rivals], 3.4)
    for axes, where, metric in panels:
        members = where.rows_of(gains[gains["metric"] == metric])
        for row in members.to_dict("records"):
            which = list(readings).index(row["candidate"])
            height = rivals.index(row["rival"]) + 0.8 * ((which + 0.5) / len(readings) - 0.5)
            _interval(axes, row, height)
        ends = [end for end in (*members["low"], *members["high"]) if not math.isnan(end)]
        _scale(axes, list(members["estimate"]), ends)
    handles = [_handle(look(row)["marker"], "black", text) for row, text in readings.items()]
    handles += [_handle("s", colour, relation) for relation, colour in RELATIONS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    warning = "generated data" if gains["generated"].any() else f"band: margin of {load_claims().margin:g}"
    set_headline(
        figure,
        f"Gain of SafeECGMatch over each method (right: better), paired by seed and record, 95 % intervals; {warning}"
        f"{silence(places(params), shown, UNPAIRED)}",
    )
    return figure


def _handle(marker: str, colour: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, linestyle="", markersize=5, label=label)


def _interval(axes: Axes, row: Mapping[Any, Any], height: float) -> None:
    colour = RELATIONS.get(row["relation"], GREY)
    if not math.isnan(row["low"]):
        axes.plot([row["low"], row["high"]], [height, height], color=colour, linewidth=0.8)
    axes.plot(
        row["estimate"], height, look(row["candidate"])["marker"], color=colour, markersize=4.5, markeredgewidth=0
    )
