"""The figures of a study, from the frames that `evaluate` wrote."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from safeecgmatch.progress import Progress
from safeecgmatch.reporting.figures import gains, overview, panels
from safeecgmatch.reporting.figures.style import STYLE, save, settings_of
from safeecgmatch.reporting.study import Study, Where

GRIDS = {
    "reliability": panels.reliability_grid,
    "budget": panels.budget_grid,
    "training": panels.training_grid,
    "confusion": panels.confusion_grid,
}
PROCESSES = 2  # a figure takes half a second


def all_figures(study: Study) -> dict[str, Callable[[], Figure]]:
    """How to draw each figure that has something to show, by the name of its file, in the report's order."""
    params = study.params
    trained = settings_of(params, study.plots["reliability"])
    overall: dict[str, tuple[Callable[[Study, list[Where]], Figure], list[Where]]] = {
        "forest": (gains.forest_figure, settings_of(params, gains.forest_marks(study))),
        "readings": (gains.effects_figure, settings_of(params, gains.effect_marks(study))),
        "tradeoff": (overview.tradeoff_figure, trained),
        "paper_vs_ours": (overview.scatter_figure, [where for where in trained if where.real]),
        "purity": (overview.purity_figure, trained),
        "refusal": (overview.refusal_figure, trained),
        "roc": (overview.roc_figure, settings_of(params, study.plots["roc"])),  # not without unseen test records
    }
    found: dict[str, Callable[[], Figure]] = {
        name: partial(make, study, shown) for name, (make, shown) in overall.items() if shown
    }
    return found | {
        f"{name}_{where.ending}": partial(grid, study, where) for where in trained for name, grid in GRIDS.items()
    }


def draw(make: Callable[[], Figure], folder: Path, name: str) -> None:
    with rc_context(STYLE):
        save(make(), folder, name)


def write_figures(folder: Path, study: Study) -> list[str]:
    """PNG and PDF of every figure; returns their names in order."""
    figures = all_figures(study)
    with ProcessPoolExecutor(PROCESSES) as pool:
        # Submitted before the bar starts its thread: a process that has several should not be forked.
        coming = [pool.submit(draw, make, folder, name) for name, make in figures.items()]
        with Progress(len(figures), "tables", "figures") as bar:
            for done in as_completed(coming):
                done.result()
                bar.advance()
    return list(figures)
