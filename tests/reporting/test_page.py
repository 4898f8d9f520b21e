from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from safeecgmatch.reporting.catalogue import build_tables
from safeecgmatch.reporting.page import items, picture, tables_of_results, to_html, to_readme, words
from tests.reporting.conftest import MadeUp


def test_a_page_is_its_parts() -> None:
    grid = words(["a", "b"], [["1,200 s", "x | y"]])
    page = to_readme(["# Title", "One.", items(["two", "three"]), grid, picture("dot", "A dot")])
    table = "| a | b |\n| --- | --- |\n| 1,200 s | x \\| y |"
    assert page == f"# Title\n\nOne.\n\n- two\n- three\n\n{table}\n\n![A dot](figures/dot.png)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "figures").mkdir()
    Image.new("RGB", (2, 2)).save(tmp_path / "figures" / "dot.png")
    return tmp_path


def test_what_several_tables_have_to_say_is_said_once_and_the_rest_below_its_table(study: MadeUp) -> None:
    tables = build_tables(study.evaluation)
    head, *parts = to_readme(tables_of_results(tables)).split("\n## ")
    assert head.startswith("## How to read the tables\n\n- ") and len(parts) == len(tables)
    for note in {note for table in tables for note in table.notes}:
        owners = [table for table in tables if note in table.notes]
        places = [name for name, part in zip(["", *tables], [head, *parts], strict=True) if note in part]
        assert places == ([""] if len(owners) > 1 else owners)
    assert "Best results are bold" in head and "which checkpoint is chosen" in parts[3]


def test_markup_becomes_html(folder: Path) -> None:
    text = "a < b & `x_1` in [file](a_b.csv), **60 %**, <ins>second</ins>\\\nnext, λ_sum"
    page = to_html(to_readme(["# Of `demo`", text, words(["a"], [["x | y"]])]), folder)
    assert 'a &lt; b &amp; <code>x_1</code> in <a href="a_b.csv">file</a>, <strong>60 %</strong>' in page
    assert "<ins>second</ins><br />\nnext, λ_sum" in page
    assert "<title>Of demo</title>" in page and "<td>x | y</td>" in page and '<div class="scroll"><table>' in page


def test_every_section_can_be_reached(folder: Path) -> None:
    page = to_html(to_readme(["# T", "## First", "### Below", "## Second"]), folder)
    assert '<a href="#s1">First</a>\n<a href="#s2">Second</a>' in page and '<h2 id="s2">Second</h2>' in page


def test_a_picture_is_embedded_with_its_caption(folder: Path) -> None:
    page = to_html(to_readme(["# T", picture("dot", 'A "dot"')]), folder)
    assert 'src="data:image/png;base64,iVBOR' in page and page.count("A &quot;dot&quot;") == 2
