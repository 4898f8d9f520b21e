"""The page of a report: parts that print themselves as Markdown, and that Markdown as one HTML file."""

from __future__ import annotations

import base64
import html
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from safeecgmatch.reporting.printing import markdown_table, render, to_markdown
from safeecgmatch.reporting.tables import Table


class Block(ABC):
    @abstractmethod
    def markdown(self) -> str: ...


@dataclass(frozen=True)
class Heading(Block):
    text: str
    level: int = 2

    def markdown(self) -> str:
        return f"{'#' * self.level} {self.text}"


@dataclass(frozen=True)
class Text(Block):
    text: str

    def markdown(self) -> str:
        return self.text


@dataclass(frozen=True)
class Items(Block):
    items: Sequence[str]

    def markdown(self) -> str:
        return "\n".join(f"- {item}" for item in self.items)


@dataclass(frozen=True)
class Grid(Block):
    """A table of words."""

    heads: Sequence[str]
    lines: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [[cell.replace("|", "\\|") for cell in line] for line in self.lines]
        return markdown_table(list(self.heads), lines, numbers=False).rstrip()


@dataclass(frozen=True)
class Numbers(Block):
    """A table of results with its notes."""

    table: Table

    def markdown(self) -> str:
        notes = "\\\n".join(self.table.notes)
        return f"{self.table.caption}\n\n{to_markdown(self.table)}\n{notes}".rstrip()


@dataclass(frozen=True)
class Picture(Block):
    name: str
    caption: str

    def markdown(self) -> str:
        return f"![{self.caption}](figures/{self.name}.png)"


def to_readme(blocks: Sequence[Block]) -> str:
    return "\n\n".join(block.markdown() for block in blocks) + "\n"


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
