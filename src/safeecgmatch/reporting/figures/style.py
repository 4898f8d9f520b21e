"""What all figures share: readable in print, in grey and by colour-blind readers, and the same bytes every time."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from safeecgmatch.config import Params
from safeecgmatch.reporting.names import data_name, is_generated
from safeecgmatch.reporting.rows import entries

# Okabe and Ito's palette; colour and marker cycle with different periods, so no two of 24 rows share both.
COLOURS = ["#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#8C6D00"]
MARKERS = ["o", "s", "^", "v", "D", "P", "X", "<", ">", "p", "h", "*"]
BLUE, VERMILLION, GREY = "#0072B2", "#D55E00", "#666666"
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,
}
PANELS_PER_ROW = 4
RASTER_DPI = 130
RASTER_COLOURS = 128
WIDTH = 8.2


@dataclass(frozen=True)
class Where:
    """A dataset and an OOD level, as figures name them."""

    dataset: str
    ood: int
    data: str
    real: bool  # not generated

    @property
    def title(self) -> str:
        return f"{self.data}, {self.ood} % OOD"

    @property
    def ending(self) -> str:
        return f"{self.dataset}_{self.ood}"

    def rows_of(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame[(frame["dataset"] == self.dataset) & (frame["ood"] == self.ood)]

    def by_row(self, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
        return {str(row): lines for row, lines in self.rows_of(frame).groupby("row", sort=False)}


def places(params: Params) -> list[Where]:
    return [
        Where(dataset, ood, data_name(params, dataset).name, not is_generated(params, dataset))
        for dataset in params.grid.datasets
        for ood in params.grid.ood_levels
    ]


def shown_rows(params: Params) -> dict[str, str]:
    """Every row of Table 3 with its label, as plots/ names it."""
    return {entry.key: entry.label for entry in entries(params)}


def look(index: int) -> dict[str, Any]:
    """Colour and marker of the row at this place of Table 3."""
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}


def within_unit(mean: Any, spread: Any) -> tuple[Any, Any]:
    """mean ± spread, cut where no accuracy and no ECE can be."""
    return np.clip(mean - spread, 0, 1), np.clip(mean + spread, 0, 1)


def legend_of(all_axes: Iterable[Axes]) -> dict[str, Any]:
    pairs = (zip(*axes.get_legend_handles_labels(), strict=True) for axes in all_axes)
    return {label: handle for members in pairs for handle, label in members}


def side_legend(figure: Figure, params: Params, **options: Any) -> None:
    """The rows that were drawn, in the order of Table 3, right of the panels."""
    handles = legend_of(figure.axes)
    order = [entry.label for entry in entries(params) if entry.label in handles]
    order += [name for name in handles if name not in order]
    figure.legend(
        [handles[name] for name in order], order, loc="outside right center", fontsize=7, frameon=False, **options
    )


def say_nothing(axes: Axes, why: str = "no runs") -> None:
    axes.text(0.5, 0.5, why, ha="center", va="center", transform=axes.transAxes, color=GREY)
    axes.set(xticks=[], yticks=[])


def panel_grid(
    labels: Mapping[str, str],
    lines: Mapping[str, pd.DataFrame],
    title: str,
    axis_labels: tuple[str, str],
    draw: Callable[[Axes, str, pd.DataFrame], None],
    own_y: bool = False,
) -> Figure:
    """One small panel for each labelled row, one legend below; `draw` gets the row's lines where there are any.

    Margins are set by hand, in inches: matplotlib's automatic layout would take longer than all the drawing.
    """
    rows = -(-len(labels) // PANELS_PER_ROW)
    height = 1.75 * rows + 1.2
    figure = Figure(figsize=(WIDTH, height))
    panels = figure.subplots(rows, PANELS_PER_ROW, squeeze=False).ravel()
    margins = {"left": 0.65 / WIDTH, "right": 1 - 0.1 / WIDTH, "top": 1 - 0.6 / height, "bottom": 0.75 / height}
    figure.subplots_adjust(**margins, wspace=0.3 if own_y else 0.12, hspace=0.42)
    for index, (axes, (row, label)) in enumerate(zip(panels, labels.items(), strict=False)):
        axes.set_title(label, fontsize=7)
        axes.tick_params(labelsize=6)
        if row in lines:
            draw(axes, row, lines[row])
        else:
            say_nothing(axes)
        if index % PANELS_PER_ROW and not own_y:
            axes.tick_params(labelleft=False)
    for axes in panels[len(labels) :]:
        axes.set_visible(False)
    figure.suptitle(title, fontsize=9, y=1 - 0.15 / height)
    figure.supxlabel(axis_labels[0], fontsize=8, y=0.35 / height)
    figure.supylabel(axis_labels[1], fontsize=8, x=0.12 / WIDTH)
    handles = legend_of(figure.axes)
    if handles:
        figure.legend(list(handles.values()), list(handles), loc="lower center", ncols=4, fontsize=7, frameon=False)
    return figure


def save(figure: Figure, folder: Path, name: str) -> None:
    """PNG with a small palette, because it is also embedded in the HTML page, and PDF; neither holds a date."""
    raster = io.BytesIO()
    figure.savefig(raster, format="png", dpi=RASTER_DPI)
    # Maximum coverage keeps a rare colour, such as a single marker's.
    image = Image.open(raster).convert("RGB").quantize(RASTER_COLOURS, Image.Quantize.MAXCOVERAGE)
    image.save(folder / f"{name}.png")
    figure.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})
