"""The figures of a study, from the frames that `evaluate` wrote."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

from safeecgmatch.progress import Progress
from safeecgmatch.reporting.figures import gains, overview, panels
from safeecgmatch.reporting.figures.style import STYLE, save, settings_of
from safeecgmatch.reporting.provenance import accepted_as_unseen
from safeecgmatch.reporting.study import Study, Where, places

GRIDS = {
    "reliability": (panels.reliability_grid, "Reliability: accuracy and number of records by confidence."),
    "budget": (
        panels.budget_grid,
        "Accuracy and ECE on test at every epoch{dashed}. Validation alone chooses the epoch.",
    ),
    "training": (panels.training_grid, "Training curves with their spread over seeds."),
    "confusion": (panels.confusion_grid, "Confusion on the open test set."),
}
NO_CLAIM = " Generated data: nothing follows for the paper's claims."
PROCESSES = 2  # a figure takes half a second


class Drawn(NamedTuple):
    """How to draw a figure, and what the page says below it; `where` is the one setting that it shows."""

    make: Callable[[], Figure]
    caption: str
    where: Where | None = None


def all_figures(study: Study) -> dict[str, Drawn]:
    """Each figure that has something to show, by the name of its file, in the report's order."""
    params = study.params
    trained = settings_of(params, study.plots["reliability"])
    real = [where for where in trained if where.real]
    generated = not all(where.real for where in places(params))
    shares = "Unseen share among accepted pool records, a dot per seed, against the pool's."
    overall: list[tuple[str, Callable[[Study, list[Where]], Figure], list[Where], str]] = [
        ("forest", gains.forest_figure, settings_of(params, gains.forest_marks(study)),
         f"Paired gains of SafeECGMatch over each method, with 95 % intervals.{NO_CLAIM * generated}"),
        ("tradeoff", overview.tradeoff_figure, trained,
         "Accuracy against ECE; bars are one sample standard deviation."),
        ("readings", gains.effects_figure, settings_of(params, gains.effect_marks(study)),
         "SafeECGMatch: what the temperature rule and the frequency branch are worth, with 95 % intervals."),
        ("paper_vs_ours", overview.scatter_figure, real, "Our means against the published ones."),
        ("purity", overview.purity_figure, trained, " ".join([shares, *accepted_as_unseen(params.grid.methods)])),
        ("refusal", overview.refusal_figure, trained,
         "Accuracy on the open test set when the least certain records are refused."),
        ("roc", overview.roc_figure, settings_of(params, study.plots["roc"]),  # not without unseen test records
         "ROC curves of the unseen-class scores on the open test set."),
    ]  # fmt: skip
    found = {name: Drawn(partial(make, study, shown), caption) for name, make, shown, caption in overall if shown}
    for where in trained:
        dashed = "; dashed: published" if where.real else ""
        for name, (grid, caption) in GRIDS.items():
            found[f"{name}_{where.ending}"] = Drawn(partial(grid, study, where), caption.format(dashed=dashed), where)
    return found


def draw(make: Callable[[], Figure], folder: Path, name: str) -> None:
    with rc_context(STYLE):
        save(make(), folder, name)


def write_figures(folder: Path, study: Study) -> dict[str, Drawn]:
    """PNG and PDF of every figure."""
    figures = all_figures(study)
    with ProcessPoolExecutor(PROCESSES) as pool:
        # Submitted before the bar starts its thread: a process that has several should not be forked.
        coming = [pool.submit(draw, figure.make, folder, name) for name, figure in figures.items()]
        with Progress(len(figures), "tables", "figures") as bar:
            for done in as_completed(coming):
                done.result()
                bar.advance()
    return figures
