"""Paired differences with their intervals: over each method, and of the two questions that the paper leaves open."""

from __future__ import annotations

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from safeecgmatch.config import PROPOSED
from safeecgmatch.reporting.claims import load_claims
from safeecgmatch.reporting.contrasts import READ_ROWS
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
from safeecgmatch.reporting.statistics import Difference, relation
from safeecgmatch.reporting.study import Study, Where, places

RELATIONS = {"better": BLUE, "worse": VERMILLION, "equivalent": GREEN, "inconclusive": GREY}
METRICS = ["acc", "ece"]
WIDEST = 4  # a panel shows this many times the largest estimate; an interval may leave it
MARKS = ["dataset", "ood", "metric", "estimate", "low", "high", "height", "colour", "marker"]


def forest_marks(study: Study) -> pd.DataFrame:
    """A line of `MARKS` for each gain of SafeECGMatch over a method; right is better for SafeECGMatch."""
    claims, frame = load_claims(), study.contrasts
    frame = frame[frame["candidate"].isin(READ_ROWS) & frame["rival"].isin(methods(study.params))]
    frame = frame[frame["metric"].isin(METRICS) & (frame["scaling"] == "none")]
    rivals, readings = forest_rivals(study, frame), list(frame["candidate"].unique())
    spreads = zip(*(frame[name] for name in ("estimate", "se_seeds", "se_records", "seeds")), strict=True)
    relations = [relation(Difference(*spread), claims.margin, claims.level) for spread in spreads]
    shift = frame["candidate"].map(lambda row: 0.8 * ((readings.index(row) + 0.5) / len(readings) - 0.5))
    return frame.assign(
        height=frame["rival"].map(rivals.index) + shift,
        colour=[RELATIONS[one] for one in relations],
        marker=[look(row)["marker"] for row in frame["candidate"]],
    )


def forest_rivals(study: Study, marks: pd.DataFrame) -> list[str]:
    return [method for method in methods(study.params) if method in set(marks["rival"])]


def effect_marks(study: Study) -> pd.DataFrame:
    """A line of `MARKS` for each effect that two readings or variants of SafeECGMatch show."""
    colours = section_colours(study)
    lines = [
        (*place, gain.difference.estimate, gain.low, gain.high, height, colours[row.section], "o")
        for height, row in enumerate(effect_rows(study.params))
        for where in places(study.params)
        for metric in METRICS
        for place in [(where.dataset, where.ood, metric)]
        if (gain := study.gain(where.dataset, row.key, where.ood, metric))
    ]
    return pd.DataFrame(lines, columns=MARKS)


def section_colours(study: Study) -> dict[str, str]:
    sections = dict.fromkeys(row.section for row in effect_rows(study.params))
    return dict(zip(sections, (BLUE, VERMILLION, GREY), strict=False))


def gains_figure(
    study: Study, shown: list[Where], marks: pd.DataFrame, names: list[str], height: float, legend: list[Artist]
) -> Figure:
    """A panel per setting and metric, a line per name, the margin as a grey band."""
    margin, columns = load_claims().margin, columns_of(study.params, shown)
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
        here = where.rows_of(marks[marks["metric"] == metric])
        for mark in here.itertuples():
            axes.plot([mark.low, mark.high], [mark.height, mark.height], color=mark.colour, linewidth=0.8)
            style = {"marker": mark.marker, "color": mark.colour, "markersize": 4.5, "markeredgewidth": 0}
            axes.plot(mark.estimate, mark.height, **style)
        # Around zero; an interval of two or three seeds may be too wide to show beside the estimates.
        widest = WIDEST * here["estimate"].abs().max()
        reach = 1.05 * max(3 * margin, min(here[["estimate", "low", "high"]].abs().max(axis=None), widest))
        axes.set_xlim(-reach, reach)
        axes.xaxis.set_major_locator(MaxNLocator(4))
    figure.legend(handles=legend, loc="outside lower center", ncols=4)
    return figure


def handle(marker: str, colour: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, linestyle="", markersize=5, label=label)


def ending(study: Study, shown: list[Where]) -> str:
    """Of a headline."""
    generated = any(not where.real for where in shown)
    band = "generated data" if generated else f"band: margin of {load_claims().margin:g}"
    return f"95 % intervals; {band}{silence(places(study.params), shown, 'fewer than two pairs of seeds')}"


def effects_figure(study: Study, shown: list[Where]) -> Figure:
    """The 2 x 2: what the temperature rule and the frequency branch are worth, beside what nothing is worth."""
    names = [row.label for row in effect_rows(study.params)]
    legend: list[Artist] = [handle("o", colour, name) for name, colour in section_colours(study).items()]
    figure = gains_figure(study, shown, effect_marks(study), names, 2.2, legend)
    what = "gain by the temperature rule and the frequency branch (right: better)"
    set_headline(figure, f"SafeECGMatch: {what}, {ending(study, shown)}")
    return figure


def forest_figure(study: Study, shown: list[Where]) -> Figure:
    """Paired differences of SafeECGMatch to each rival, one symbol per reading."""
    marks = forest_marks(study)
    names = [method_name(rival).name for rival in forest_rivals(study, marks)]
    texts = {one.row(PROPOSED): one.text for one in load_claims().readings[study.params.protocol].values()}
    legend: list[Artist] = [
        *(handle(look(row)["marker"], "black", texts.get(row, row)) for row in marks["candidate"].unique()),
        *(handle("s", colour, word) for word, colour in RELATIONS.items()),
    ]
    figure = gains_figure(study, shown, marks, names, 3.4, legend)
    what = "Gain of SafeECGMatch over each method (right: better), paired by seed and record"
    set_headline(figure, f"{what}, {ending(study, shown)}")
    return figure
