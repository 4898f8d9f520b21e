"""A page of ECGs on ECG paper, a few per class, so that a person can see that the data is right.

25 mm/s and 10 mm/mV: a large square is 0.2 s by 0.5 mV. Four columns of 2.5 s as on a printed 12-lead ECG, and lead II
for all 10 s below them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safeecgmatch.data.classes import LEADS, SECONDS
from safeecgmatch.data.store import Entry

PER_CLASS = 2
MM_PER_SECOND, MM_PER_MILLIVOLT = 25.0, 10.0
STRIP_WIDTH = SECONDS * MM_PER_SECOND
TRACE_PITCH = 25.0  # mm between the base lines of two traces
STRIP_HEIGHT = 4 * TRACE_PITCH + 5
MARGIN, GUTTER, TITLE = 8.0, 10.0, 13.0
DOTS_PER_MM = 4.0
INK, FINE, COARSE, PAPER = "#1b1b1f", "#f8d3d3", "#eda5a5", "#fffaf8"
NAME_BOX = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.75, "pad": 0.5}  # lead names stay legible on a trace
COLUMNS = tuple(tuple(LEADS[start : start + 3]) for start in range(0, 12, 3))


def choose_rows(labels: Sequence[str], per_class: int = PER_CLASS) -> list[tuple[str, list[int]]]:
    """For each class a few rows, evenly spaced over it: the same ones every time."""
    rows: dict[str, list[int]] = {}
    for row, label in enumerate(labels):
        rows.setdefault(label, []).append(row)
    return [
        (label, [members[len(members) * (k + 1) // (per_class + 1)] for k in range(min(per_class, len(members)))])
        for label, members in sorted(rows.items())
    ]


def base_line(place: int) -> float:
    """Height of a trace's zero above the strip's lower edge, in millimetres; traces are counted from the top."""
    return STRIP_HEIGHT - TRACE_PITCH * (place + 0.6)


def strip_curves(
    signal: NDArray[np.int16], sampling_rate: int
) -> list[tuple[str, NDArray[np.float64], NDArray[np.float64]]]:
    """Name, x and y in millimetres (y upwards from the strip's lower edge) of each trace of one ECG."""
    millimetres = signal / 1000 * MM_PER_MILLIVOLT
    seconds = np.arange(signal.shape[1]) / sampling_rate
    curves = []
    for number, column in enumerate(COLUMNS):
        part = (seconds >= number * SECONDS / 4) & (seconds < (number + 1) * SECONDS / 4)
        for place, lead in enumerate(column):
            base = base_line(place)
            trace = millimetres[LEADS.index(lead), part]
            curves.append((lead, seconds[part] * MM_PER_SECOND, base + trace - np.median(trace)))
    rhythm = millimetres[LEADS.index("II")]
    curves.append(("II", seconds * MM_PER_SECOND, base_line(3) + rhythm - np.median(rhythm)))
    return curves


def _draw_paper(axes: Any, left: float, bottom: float) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((left, bottom), STRIP_WIDTH, STRIP_HEIGHT, facecolor=PAPER, edgecolor="none", zorder=0))
    for step, colour, width in ((1.0, FINE, 0.35), (5.0, COARSE, 0.7)):
        x = left + np.arange(0, STRIP_WIDTH + step / 2, step)
        y = bottom + np.arange(0, STRIP_HEIGHT + step / 2, step)
        axes.vlines(x, bottom, bottom + STRIP_HEIGHT, colors=colour, linewidths=width, zorder=1)
        axes.hlines(y, left, left + STRIP_WIDTH, colors=colour, linewidths=width, zorder=1)


def _draw_strip(
    axes: Any, left: float, bottom: float, signal: NDArray[np.int16], rate: int, title: str, note: str
) -> None:
    _draw_paper(axes, left, bottom)
    for number, (lead, x, y) in enumerate(strip_curves(signal, rate)):
        base = bottom + base_line(3 if number == len(LEADS) else number % 3)
        inside = np.clip(y, 0, STRIP_HEIGHT)  # a stray amplitude stays on its own paper
        axes.plot(left + x, bottom + inside, color=INK, linewidth=0.8, zorder=3, solid_joinstyle="round")
        axes.vlines(left + x[0], base - 3, base + 3, colors=INK, linewidths=0.8, zorder=3)
        axes.text(left + x[0] + 1, base + 8, lead, fontsize=8, color=INK, va="bottom", zorder=4, bbox=NAME_BOX)
    axes.text(left, bottom + STRIP_HEIGHT + 2, title, fontsize=13, fontweight="bold", color=INK, va="bottom")
    axes.text(left + STRIP_WIDTH, bottom + STRIP_HEIGHT + 2, note, fontsize=9, color=INK, ha="right", va="bottom")


def draw_page(
    target: Path, signals: NDArray[np.int16], entries: Sequence[Entry], sampling_rate: int, name: str
) -> None:
    """Write the page of a store as a PNG; the same store gives the same bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # imported late: slow, and not needed to read a store
    from matplotlib.figure import Figure

    chosen = choose_rows([entry.label for entry in entries])
    width = 2 * MARGIN + PER_CLASS * STRIP_WIDTH + (PER_CLASS - 1) * GUTTER
    height = 2 * MARGIN + len(chosen) * (STRIP_HEIGHT + TITLE)
    dpi = DOTS_PER_MM * 25.4
    figure = Figure(figsize=(width / 25.4, height / 25.4), dpi=dpi)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    for line, (label, rows) in enumerate(chosen):
        bottom = height - MARGIN - (line + 1) * (STRIP_HEIGHT + TITLE)
        for column, row in enumerate(rows):
            left = MARGIN + column * (STRIP_WIDTH + GUTTER)
            note = f"{name}, record {entries[row].record}, {sampling_rate} Hz, 25 mm/s, 10 mm/mV"
            _draw_strip(axes, left, bottom, np.asarray(signals[row]), sampling_rate, label, note)
    figure.savefig(target, metadata={"Software": None})
