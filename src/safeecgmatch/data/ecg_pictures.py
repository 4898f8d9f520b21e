"""A page of ECGs on ECG paper, a few per class, so that a person can see that the data is right.

25 mm/s and 10 mm/mV: a large square is 0.2 s by 0.5 mV. Four columns of 2.5 s as on a printed 12-lead ECG, and lead II
for all 10 s below them. Drawn with Pillow, which takes a tenth of the time that a plotting library needs to start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from safeecgmatch.engine.signal_store import Entry
from safeecgmatch.leads import LEADS, SECONDS

if TYPE_CHECKING:
    from PIL.Image import Image

PER_CLASS = 2
MM_PER_SECOND, MM_PER_MILLIVOLT = 25, 10
STRIP_WIDTH = SECONDS * MM_PER_SECOND
LABEL, ABOVE, BELOW = 5, 10, 7  # mm for a row's labels, and at least for its traces above and below zero
FARTHEST = 30  # mm from zero: a stray amplitude goes no farther
MARGIN, GUTTER, TITLE = 8, 10, 13
DOTS = 4  # per mm
FINER = 2  # strips are drawn at twice the resolution and reduced, for smooth lines
INK, FINE, COARSE, PAPER = "#1b1b1f", "#f9dcdc", "#eea9a9", "#fffaf8"
COLUMNS = tuple(tuple(LEADS[start : start + 3]) for start in range(0, 12, 3))
ROWS = [[(lead, number) for number, lead in enumerate(leads)] for leads in zip(*COLUMNS, strict=True)]


@dataclass(frozen=True)
class Curve:
    """A trace in millimetres from the strip's upper left corner: its label's upper edge, its zero, its points."""

    lead: str
    label: float
    zero: float
    x: NDArray[np.float64]
    y: NDArray[np.float64]


def choose_rows(labels: Sequence[str], per_class: int = PER_CLASS) -> list[tuple[str, list[int]]]:
    """For each class a few rows, evenly spaced over it: the same ones every time."""
    rows: dict[str, list[int]] = {}
    for row, label in enumerate(labels):
        rows.setdefault(label, []).append(row)
    return [
        (label, [members[len(members) * (k + 1) // (per_class + 1)] for k in range(min(per_class, len(members)))])
        for label, members in sorted(rows.items())
    ]


def strip_curves(signal: NDArray[np.int16], sampling_rate: int) -> tuple[list[Curve], int]:
    """The traces, and the height of their strip; each row has room of its own, so none crosses another's labels."""
    seconds = np.arange(signal.shape[1]) / sampling_rate
    quarter = SECONDS / len(COLUMNS)
    quarters = [(seconds >= at * quarter) & (seconds < (at + 1) * quarter) for at in range(len(COLUMNS))]
    rows = [[(lead, quarters[number]) for lead, number in row] for row in ROWS] + [[("II", seconds >= 0)]]
    curves, edge = [], 0
    for row in rows:
        traces = [signal[LEADS.index(lead), part] / 1000 * MM_PER_MILLIVOLT for lead, part in row]
        traces = [np.clip(trace - np.median(trace), -FARTHEST, FARTHEST) for trace in traces]
        zero = edge + LABEL + math.ceil(max(ABOVE, *(trace.max() for trace in traces)))
        curves += [
            Curve(lead, edge, zero, seconds[part] * MM_PER_SECOND, zero - trace)
            for (lead, part), trace in zip(row, traces, strict=True)
        ]
        edge = zero + math.ceil(max(BELOW, *(-trace.min() for trace in traces)))
    return curves, -(-edge // 5) * 5


def draw_strip(signal: NDArray[np.int16], sampling_rate: int) -> Image:
    from PIL import Image, ImageDraw, ImageFont

    curves, height = strip_curves(signal, sampling_rate)
    scale = DOTS * FINER
    image = Image.new("RGB", (STRIP_WIDTH * scale + FINER, height * scale + FINER), PAPER)
    draw = ImageDraw.Draw(image)
    for step, colour in ((1, FINE), (5, COARSE)):
        for at in range(0, image.width, step * scale):
            draw.rectangle((at, 0, at + FINER - 1, image.height), fill=colour)
        for at in range(0, image.height, step * scale):
            draw.rectangle((0, at, image.width, at + FINER - 1), fill=colour)
    for curve in curves:
        points = zip((curve.x * scale).tolist(), (curve.y * scale).tolist(), strict=True)
        draw.line(list(points), fill=INK, width=FINER + 1)
        left, middle = curve.x[0] * scale, curve.zero * scale
        draw.line((left, middle - 3 * scale, left, middle + 3 * scale), fill=INK, width=FINER)
    image = image.reduce(FINER)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(14)
    for curve in curves:
        corner = (float(curve.x[0] + 1.5) * DOTS, curve.label * DOTS + 2)
        draw.text(corner, curve.lead, fill=INK, font=font, stroke_width=2, stroke_fill=PAPER)
    return image


def draw_page(
    target: Path, signals: NDArray[np.int16], entries: Sequence[Entry], sampling_rate: int, name: str
) -> None:
    """Write the page of a store as a PNG; the same store gives the same bytes."""
    from PIL import Image, ImageDraw, ImageFont  # imported late: not needed to read a store

    lines = [
        (label, {row: draw_strip(np.asarray(signals[row]), sampling_rate) for row in rows})
        for label, rows in choose_rows([entry.label for entry in entries])
    ]
    width = 2 * MARGIN + PER_CLASS * STRIP_WIDTH + (PER_CLASS - 1) * GUTTER
    heights = [TITLE * DOTS + max(strip.height for strip in strips.values()) for _, strips in lines]
    page = Image.new("RGB", (width * DOTS, 2 * MARGIN * DOTS + sum(heights)), "white")
    draw = ImageDraw.Draw(page)
    large, small = ImageFont.load_default(28), ImageFont.load_default(16)
    top = (MARGIN + TITLE) * DOTS
    for (label, strips), height in zip(lines, heights, strict=True):
        for column, (row, strip) in enumerate(strips.items()):
            left = (MARGIN + column * (STRIP_WIDTH + GUTTER)) * DOTS
            right = left + STRIP_WIDTH * DOTS
            note = f"{name}, record {entries[row].record}, {sampling_rate} Hz, 25 mm/s, 10 mm/mV"
            page.paste(strip, (left, top))
            draw.text((left, top - 6), label, fill=INK, font=large, anchor="ls")
            draw.text((right, top - 6), note, fill=INK, font=small, anchor="rs")
        top += height
    page.save(target, format="PNG", compress_level=3)  # half the time of the default, a tenth more bytes
