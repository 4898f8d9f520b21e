"""A page of ECGs on ECG paper, a few per class, so that a person can see that the data is right.

25 mm/s and 10 mm/mV: a large square is 0.2 s by 0.5 mV. Four columns of 2.5 s as on a printed 12-lead ECG, and lead II
for all 10 s below them. Drawn with Pillow, which takes a tenth of the time that a plotting library needs to start.
"""

from __future__ import annotations

from collections.abc import Sequence
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
TRACE_PITCH = 25  # mm between the base lines of two traces
STRIP_HEIGHT = 4 * TRACE_PITCH + 5
MARGIN, GUTTER, TITLE = 8, 10, 13
DOTS = 4  # per mm
FINER = 2  # strips are drawn at twice the resolution and reduced, for smooth lines
INK, FINE, COARSE, PAPER = "#1b1b1f", "#f9dcdc", "#eea9a9", "#fffaf8"
COLUMNS = tuple(tuple(LEADS[start : start + 3]) for start in range(0, 12, 3))

Curve = tuple[str, int, NDArray[np.float64], NDArray[np.float64]]


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
    """Depth of a trace's zero below the strip's upper edge, in millimetres; traces are counted from the top."""
    return TRACE_PITCH * (place + 0.6)


def strip_curves(signal: NDArray[np.int16], sampling_rate: int) -> list[Curve]:
    """Lead, place from the top, and x and y in millimetres from the strip's upper left corner, of each trace."""
    millimetres = signal / 1000 * MM_PER_MILLIVOLT
    seconds = np.arange(signal.shape[1]) / sampling_rate
    quarter = SECONDS / len(COLUMNS)
    parts = [
        (lead, place, (seconds >= number * quarter) & (seconds < (number + 1) * quarter))
        for number, column in enumerate(COLUMNS)
        for place, lead in enumerate(column)
    ]
    curves = []
    for lead, place, part in [*parts, ("II", 3, seconds >= 0)]:
        trace = millimetres[LEADS.index(lead), part]
        depth = base_line(place) - (trace - np.median(trace))
        # A stray amplitude stays on its own paper.
        curves.append((lead, place, seconds[part] * MM_PER_SECOND, np.clip(depth, 0, STRIP_HEIGHT)))
    return curves


def draw_strip(signal: NDArray[np.int16], sampling_rate: int) -> Image:
    from PIL import Image, ImageDraw, ImageFont

    scale = DOTS * FINER
    image = Image.new("RGB", (STRIP_WIDTH * scale + FINER, STRIP_HEIGHT * scale + FINER), PAPER)
    draw = ImageDraw.Draw(image)
    for step, colour in ((1, FINE), (5, COARSE)):
        for at in range(0, STRIP_WIDTH * scale + 1, step * scale):
            draw.rectangle((at, 0, at + FINER - 1, image.height), fill=colour)
        for at in range(0, STRIP_HEIGHT * scale + 1, step * scale):
            draw.rectangle((0, at, image.width, at + FINER - 1), fill=colour)
    curves = strip_curves(signal, sampling_rate)
    for _, place, x, y in curves:
        draw.line(list(zip((x * scale).tolist(), (y * scale).tolist(), strict=True)), fill=INK, width=FINER + 1)
        left, middle = x[0] * scale, base_line(place) * scale
        draw.line((left, middle - 3 * scale, left, middle + 3 * scale), fill=INK, width=FINER)
    image = image.reduce(FINER)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(14)
    for lead, place, x, _ in curves:
        corner = (float(x[0] + 1.5) * DOTS, (base_line(place) - 12) * DOTS)
        draw.text(corner, lead, fill=INK, font=font, stroke_width=2, stroke_fill=PAPER)
    return image


def draw_page(
    target: Path, signals: NDArray[np.int16], entries: Sequence[Entry], sampling_rate: int, name: str
) -> None:
    """Write the page of a store as a PNG; the same store gives the same bytes."""
    from PIL import Image, ImageDraw, ImageFont  # imported late: not needed to read a store

    chosen = choose_rows([entry.label for entry in entries])
    width = 2 * MARGIN + PER_CLASS * STRIP_WIDTH + (PER_CLASS - 1) * GUTTER
    height = 2 * MARGIN + len(chosen) * (STRIP_HEIGHT + TITLE)
    page = Image.new("RGB", (width * DOTS, height * DOTS), "white")
    draw = ImageDraw.Draw(page)
    large, small = ImageFont.load_default(28), ImageFont.load_default(16)
    for line, (label, rows) in enumerate(chosen):
        top = (MARGIN + TITLE + line * (STRIP_HEIGHT + TITLE)) * DOTS
        for column, row in enumerate(rows):
            left = (MARGIN + column * (STRIP_WIDTH + GUTTER)) * DOTS
            right = left + STRIP_WIDTH * DOTS
            note = f"{name}, record {entries[row].record}, {sampling_rate} Hz, 25 mm/s, 10 mm/mV"
            page.paste(draw_strip(np.asarray(signals[row]), sampling_rate), (left, top))
            draw.text((left, top - 6), label, fill=INK, font=large, anchor="ls")
            draw.text((right, top - 6), note, fill=INK, font=small, anchor="rs")
    page.save(target, format="PNG", compress_level=3)  # half the time of the default, a tenth more bytes
