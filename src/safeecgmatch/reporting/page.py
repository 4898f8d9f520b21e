"""The page of a report: its parts as Markdown, and that Markdown as one HTML file."""

from __future__ import annotations

import base64
import html
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from safeecgmatch.reporting.printing import markdown_table, render, to_markdown
from safeecgmatch.reporting.tables import Table


def items(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def words(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table of words."""
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return markdown_table(list(heads), escaped, numbers=False).rstrip()


def tables_of_results(tables: Sequence[Table]) -> list[str]:
    """What several tables have to say first, once; then each with its caption and the notes that are its alone."""
    counts = Counter(note for table in tables for note in table.notes)
    shared = [note for note, count in counts.items() if count > 1]
    parts = ["## How to read the tables", items(shared)] if shared else []
    for table in tables:
        own = [note for note in table.notes if note not in shared]
        parts += [f"## Table {table.number}: {table.title}", table.caption, to_markdown(table).rstrip()]
        parts += ["\\\n".join(own)] if own else []
    return parts


def picture(name: str, caption: str) -> str:
    return f"![{caption}](figures/{name}.png)"


def to_readme(parts: Sequence[str]) -> str:
    return "\n\n".join(parts) + "\n"


def to_html(readme: str, folder: Path) -> str:
    """The page as one file that fetches nothing: pictures are embedded from `folder`, tables sort by a click."""
    parser = MarkdownIt("commonmark").enable("table")
    parser.add_render_rule("table_open", lambda *_: '<div class="scroll"><table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    parser.add_render_rule("image", lambda _, tokens, index, *__: embedded(tokens[index], folder))
    environment: dict[str, Any] = {}
    tokens = parser.parse(readme, environment)
    headings = []
    for token, content in pairwise(tokens):
        if token.type == "heading_open" and token.tag == "h2":
            headings.append(content.content)
            token.attrSet("id", f"s{len(headings)}")
    title, rest = tokens[1].content.replace("`", ""), tokens[3:]  # a page opens with its title: open, text, close
    body = parser.renderer.render(rest, parser.options, environment)
    return render("report.html.j2", title=html.escape(title), headings=headings, body=body)


def embedded(image: Token, folder: Path) -> str:
    data = base64.b64encode((folder / str(image.attrGet("src"))).read_bytes()).decode()
    caption = html.escape(image.content, quote=True)
    source = f"data:image/png;base64,{data}"
    return f'<span class="figure"><img alt="{caption}" src="{source}"><span>{caption}</span></span>'
