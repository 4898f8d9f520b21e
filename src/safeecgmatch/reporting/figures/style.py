"""What all figures share: readable in print, in grey and by colour-blind readers, and the same bytes every time."""

from __future__ import annotations

import io
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.reporting.rows import entries
from safeecgmatch.reporting.study import Where, places

# A row's colour and marker are its own in every figure of every report. Red is SafeECGMatch: dark in its main run,
# pale in another reading of the temperatures.
LOOKS = {
    "supervised": ("#000000", "o"),
    "fixmatch": ("#E69F00", "s"),
    "iomatch": ("#56B4E9", "^"),
    "openmatch": ("#332288", "v"),
    "scomatch": ("#117733", "D"),
    "safestudent": ("#AA4499", "p"),
    "ecgmatch": ("#999933", "h"),
    "adello": ("#8C510A", "<"),
    "tstfc": ("#44AA99", ">"),
    "complematch": ("#E78AC3", "8"),
    "calimatch": ("#0072B2", "H"),
    "safeecgmatch@fused": ("#C8102E", "*"),
    "safeecgmatch@time": ("#C8102E", "d"),
    "safeecgmatch-learned_t@fused": ("#F58F8F", "P"),
    "safeecgmatch-learned_t@time": ("#F58F8F", "X"),
}
SPARE_COLOURS, SPARE_MARKERS = ("#A6761D", "#66C2A5", "#7570B3", "#5B7C99"), "os^vD<>"  # for methods not listed above
BLUE, GREEN, VERMILLION, GREY, PALE = "#0072B2", "#009E73", "#D55E00", "#666666", "#C9C9C9"
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "figure.titlesize": 9,
    "pdf.fonttype": 42,
}
MOST_COLUMNS, FEWEST_COLUMNS = 5, 3
RASTER_DPI = 200
WIDTH, LINE = 8.2, 120  # inches, and characters of a headline


def settings_of(params: Params, frame: pd.DataFrame) -> list[Where]:
    """Where a frame has lines: a study in progress has empty settings, of which no panel is drawn."""
    return [where for where in places(params) if len(where.rows_of(frame))]


def silence(wanted: list[Where], shown: list[Where], why: str = "no runs yet") -> str:
    """The end of a headline: which settings have no panel, and why."""
    missing = [f"{where.data} {where.ood} %" for where in wanted if where not in shown]
    return f"; {why}: {', '.join(missing)}" if missing else ""


def shown_rows(params: Params) -> dict[str, str]:
    """Every row of Table 3 with its label, as plots/ names it."""
    return {entry.key: entry.label for entry in entries(params)}


def look(row: str) -> dict[str, Any]:
    """Colour and marker of a row of plots/; that of an unlisted method follows from its name alone."""
    known = LOOKS.get(row) or LOOKS.get(f"{row}@fused")
    if known is None:
        number = zlib.crc32(row.encode())
        known = SPARE_COLOURS[number % len(SPARE_COLOURS)], SPARE_MARKERS[number % len(SPARE_MARKERS)]
    return {"color": known[0], "marker": known[1]}


def line_of(row: str) -> dict[str, Any]:
    """As `look`, for a curve: the time branch of SafeECGMatch is dashed."""
    return {**look(row), "linestyle": "--" if row.endswith("@time") else "-"}


def within_unit(mean: Any, spread: Any) -> tuple[Any, Any]:
    """mean ± spread, cut where no accuracy and no ECE can be."""
    return np.clip(mean - spread, 0, 1), np.clip(mean + spread, 0, 1)


def legend_of(all_axes: Iterable[Axes]) -> dict[str, Any]:
    pairs = (zip(*axes.get_legend_handles_labels(), strict=True) for axes in all_axes)
    return {label: handle for members in pairs for handle, label in members}


def legend_below(figure: Figure, params: Params) -> None:
    """The rows that were drawn, in the order of Table 3, but SafeECGMatch first: its readings fill a column."""
    handles = legend_of(figure.axes)
    rows = sorted(shown_rows(params).items(), key=lambda row: not row[0].startswith(PROPOSED))
    names = [name for _, name in rows if name in handles]
    names += [name for name in handles if name not in names]
    if names:
        figure.legend([handles[name] for name in names], names, loc="outside lower center", ncols=4)


def set_headline(figure: Figure, text: str, **options: Any) -> int:
    """In lines of about the same length; returns their number."""
    number = -(-len(text) // LINE)
    lines = fill(text, LINE if number == 1 else len(text) // number + 10, break_on_hyphens=False)
    figure.suptitle(lines, **options)
    return lines.count("\n") + 1


def columns_of(params: Params, shown: list[Where]) -> int:
    """As many as a dataset has settings; datasets of one setting share a row."""
    most = max(Counter(where.dataset for where in shown).values())
    return most if most > 1 else min(len(params.grid.ood_levels), len(shown))


def setting_panels(
    params: Params, shown: list[Where], height: float, **options: Any
) -> tuple[Figure, list[tuple[Axes, Where]]]:
    """A panel for each of these settings; where all are shown, a row of panels per dataset."""
    columns = columns_of(params, shown)
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(WIDTH, height * rows + 0.4), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, **options).ravel())
    for empty in panels[len(shown) :]:
        empty.remove()
    return figure, list(zip(panels, shown, strict=False))


def panel_grid(
    labels: Mapping[str, str],
    lines: Mapping[str, pd.DataFrame],
    title: str,
    below: str,
    draws: Mapping[str, Callable[[Axes, str, pd.DataFrame], None]],
    legend: bool = False,
) -> Figure:
    """Small panels for each labelled row that has lines, one below the other for each of `draws`, which are named by
    their y axis; rows without lines are named under the title.

    Margins are set by hand, in inches: matplotlib's automatic layout would take longer than all the drawing.
    """
    shown = [row for row in labels if row in lines]
    silent = [label.replace(" ", "\u00a0") for row, label in labels.items() if row not in lines]  # not to be broken
    blocks = -(-len(shown) // MOST_COLUMNS)
    columns = max(-(-len(shown) // blocks), FEWEST_COLUMNS)
    note = fill(f"No runs yet: {', '.join(silent)}.", 140, break_on_hyphens=False) if silent else ""
    figure = Figure()
    title_end = 0.15 + 0.15 * set_headline(figure, title, va="top")
    head, foot = title_end + 0.3 + 0.13 * len(note.splitlines()), 0.8 if legend else 0.55
    height = blocks * (1.15 * len(draws) + 0.5) + head + foot
    figure.set_size_inches(WIDTH, height)
    figure.suptitle(figure.get_suptitle(), y=1 - 0.12 / height)
    figure.text(0.5, 1 - title_end / height, note, ha="center", va="top", fontsize=7, color=GREY)
    grid = figure.add_gridspec(
        blocks, columns, left=0.6 / WIDTH, right=1 - 0.1 / WIDTH, top=1 - head / height, bottom=foot / height,
        wspace=0.12, hspace=0.5 / (1.15 * len(draws)),
    )  # fmt: skip
    for index, row in enumerate(shown):
        cell = grid[index // columns, index % columns].subgridspec(len(draws), 1, hspace=0.12)
        for place, (name, draw) in enumerate(draws.items()):
            axes = figure.add_subplot(cell[place])
            axes.tick_params(labelsize=6)
            draw(axes, row, lines[row])
            axes.tick_params(labelleft=index % columns == 0, labelbottom=place == len(draws) - 1)
            axes.set_title(labels[row].replace(" (", "\n(") if place == 0 else "", fontsize=7)
            axes.set_ylabel(name if index % columns == 0 else "")
    figure.supxlabel(below, fontsize=8, y=(foot - 0.48) / height, va="bottom")
    if legend:
        handles = legend_of(figure.axes)
        figure.legend(list(handles.values()), list(handles), loc="lower center", ncols=len(handles))
    return figure


def save(figure: Figure, folder: Path, name: str) -> None:
    """PNG with a palette, because it is also embedded in the HTML page, and PDF; neither holds a date."""
    raster = io.BytesIO()
    figure.savefig(raster, format="png", dpi=RASTER_DPI)
    with_palette(Image.open(raster).convert("RGB")).save(folder / f"{name}.png", compress_level=9)
    figure.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})


def with_palette(image: Image.Image) -> Image.Image:
    """In the 128 commonest colours, exactly, and 128 that cover all the others, such as those of a single marker."""
    codes = np.asarray(image, dtype=np.uint32) @ np.array([1 << 16, 1 << 8, 1], dtype=np.uint32)
    known, place, count = np.unique(codes, return_inverse=True, return_counts=True)
    colours = np.stack([known >> 16, known >> 8 & 255, known & 255], axis=1).astype(np.int32)
    rare = np.reshape(image.quantize(128, Image.Quantize.MAXCOVERAGE).getpalette() or [], (-1, 3))[:128]
    palette = np.concatenate([colours[np.argsort(-count, kind="stable")[:128]], rare])
    parts = np.array_split(colours, 1 + len(colours) // 1000)  # a few megabytes at a time
    nearest = np.concatenate([((part[:, None] - palette) ** 2).sum(axis=2).argmin(axis=1) for part in parts])
    found = Image.fromarray(nearest[place].reshape(codes.shape).astype(np.uint8), mode="P")
    found.putpalette(palette.astype(np.uint8).tobytes())
    return found
