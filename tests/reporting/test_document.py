from __future__ import annotations

from pathlib import Path

from PIL import Image

from safeecgmatch.reporting.document import Grid, Heading, Items, Picture, Text, inline_html, inline_tex, to_readme


def test_markup_in_html_and_latex() -> None:
    text = "a < b & `x_1` in [file](a_b.csv), **60 %**"
    assert inline_html(text) == 'a &lt; b &amp; <code>x_1</code> in <a href="a_b.csv">file</a>, <strong>60 %</strong>'
    assert inline_tex(text) == r"a $<$ b \& \texttt{x\_1} in file, \textbf{60 \%}"


def test_a_page_is_its_blocks() -> None:
    grid = Grid(["a", "b"], [["1,200 s", "x | y"]])
    page = to_readme([Heading("Title", 1), Text("One."), Items(["two", "three"]), grid])
    assert page == "# Title\n\nOne.\n\n- two\n- three\n\n| a | b |\n| --- | --- |\n| 1,200 s | x \\| y |\n"
    assert 'data-sort="1200"' in grid.html(Path()) and "<td" in grid.html(Path())
    assert r"1,200 s & x | y \\[1pt]" in grid.tex()


def test_a_picture_is_embedded(tmp_path: Path) -> None:
    Image.new("RGB", (2, 2)).save(tmp_path / "dot.png")
    markup = Picture("dot", 'A "dot"').html(tmp_path)
    assert 'src="data:image/png;base64,iVBOR' in markup and "&quot;dot&quot;" in markup
