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
from safeecgmatch.reporting.figures.style import BLUE, GREY, VERMILLION, WIDTH, Where, places, say_nothing
from safeecgmatch.reporting.names import method_name, metric_name
from safeecgmatch.reporting.results import Results
from safeecgmatch.reporting.rows import effect_rows, methods

READING_MARKERS = "osD^v"
RELATIONS = {"better": BLUE, "worse": VERMILLION, "equivalent": "#009E73", "inconclusive": GREY}
UNPAIRED = "fewer than two pairs of seeds"
METRICS = ["acc", "ece"]


def gain_panels(params: Params, names: list[str], height: float) -> tuple[Figure, list[tuple[Axes, Where, str]]]:
    """A panel per setting and metric, a line per name, the margin as a grey band."""
    margin = load_claims().margin
    shown = [(where, metric) for where in places(params) for metric in METRICS]
    columns = 2 if len(shown) <= 4 else 4
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(WIDTH, height * rows + 0.8), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    for axes, (where, metric) in zip(panels, shown, strict=False):
        axes.axvline(0, color=GREY, linewidth=0.8)
        axes.axvspan(-margin, margin, color=GREY, alpha=0.12, linewidth=0)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set(xlabel=f"gain in {metric_name(metric)}", title=where.title)
    return figure, [(axes, *place) for axes, place in zip(panels, shown, strict=False)]


def effects_figure(params: Params, results: Results) -> Figure:
    """The 2 x 2: what the temperature rule and the frequency branch are worth, beside what nothing is worth."""
    effects = {row.key: row for row in effect_rows(params)}
    sections = list(dict.fromkeys(row.section for row in effects.values()))
    colours = dict(zip(sections, (BLUE, VERMILLION, GREY), strict=False))
    figure, panels = gain_panels(params, [row.label for row in effects.values()], 2.4)
    for axes, where, metric in panels:
        for height, row in enumerate(effects.values()):
            gain = results.gain(where.dataset, row.key, where.ood, metric)
            if gain:
                axes.plot([gain.low, gain.high], [height, height], color=colours[row.section], linewidth=1.2)
                axes.plot(gain.mean, height, "o", color=colours[row.section], markersize=4)
            else:
                axes.text(
                    0.02, height, UNPAIRED, transform=axes.get_yaxis_transform(), va="center", fontsize=5, color=GREY
                )
    handles = [Line2D([], [], color=colour, marker="o", markersize=4, label=name) for name, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=7, frameon=False)
    figure.suptitle(
        "SafeECGMatch: what the temperature rule and the frequency branch gain (right: better), 95 % intervals",
        fontsize=9,
    )
    return figure


def forest_figure(params: Params, gains: pd.DataFrame) -> Figure:
    """Paired differences of SafeECGMatch to each rival with 95 % intervals, one symbol per reading; right is better."""
    gains = gains[(gains["scaling"] == "none") & gains["metric"].isin(METRICS)]
    rivals = [method for method in methods(params) if method in set(gains["rival"])]
    readings = list(dict.fromkeys(gains["reading"]))
    figure, panels = gain_panels(params, [method_name(rival).name for rival in rivals], 3.0)
    for axes, where, metric in panels:
        members = where.rows_of(gains[gains["metric"] == metric])
        for row in members.to_dict("records"):
            _interval(axes, row, rivals, readings)
        if members.empty:
            say_nothing(axes, UNPAIRED)
    handles = [axes_handle(readings.index(reading), "black", reading or "SafeECGMatch") for reading in readings] + [
        axes_handle(0, colour, relation) for relation, colour in RELATIONS.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=7, frameon=False)
    generated = bool(gains["generated"].any()) if len(gains) else False
    warning = "generated data" if generated else f"grey band: margin of {load_claims().margin:g}"
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
