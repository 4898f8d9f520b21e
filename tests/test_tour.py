"""The tour runs from its first cell to its last, and is committed with what it shows."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import ROOT

TOUR = ROOT / "examples" / "tour.ipynb"


def shown(notebook: nbformat.NotebookNode) -> list[list[str]]:
    """The kinds of output of each code cell."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [sorted({kind for output in cell.outputs for kind in output.get("data", ())}) for cell in code]


@pytest.mark.slow
def test_the_tour_runs_and_shows_what_is_committed() -> None:
    stored = nbformat.read(TOUR, as_version=4)
    assert len(stored.cells) == 10 and TOUR.stat().st_size < 300_000
    place = {"metadata": {"path": TOUR.parent}}
    executed = NotebookClient(nbformat.read(TOUR, as_version=4), resources=place).execute()
    assert shown(executed) == shown(stored) and all(shown(stored))
