"""The parts of a report, each of which prints itself as Markdown, HTML and LaTeX.

Texts are plain, with `code`, **bold** and [label](target) as their only markup.
"""

from __future__ import annotations

import base64
import html
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from safeecgmatch.reporting.render import html_table, markdown_table, tex, to_html, to_markdown
from safeecgmatch.reporting.tables import Table

MARKUP = re.compile(r"`([^`]+)`|\[([^\]]+)\]\(([^)]+)\)|\*\*([^*]+)\*\*")
NUMBER = re.compile(r"^[-+]?[\d,]+(\.\d+)?")


def inline_html(text: str) -> str:
    def replacement(found: re.Match[str]) -> str:
        code, label, target, bold = found.groups()
        if code:
            return f"<code>{code}</code>"
        return f'<a href="{target}">{label}</a>' if label else f"<strong>{bold}</strong>"

    return MARKUP.sub(replacement, html.escape(text, quote=False))


def inline_tex(text: str) -> str:
    """Targets are files beside the report, so a printed page shows the label alone."""
    parts, end = [], 0
    for found in MARKUP.finditer(text):
        code, label, _, bold = found.groups()
        parts.append(tex(text[end : found.start()]))
        parts.append(rf"\texttt{{{tex(code)}}}" if code else tex(label) if label else rf"\textbf{{{tex(bold)}}}")
        end = found.end()
    return "".join([*parts, tex(text[end:])])


class Block(ABC):
    @abstractmethod
    def markdown(self) -> str: ...

    @abstractmethod
    def html(self, figures: Path) -> str:
        """Self-contained: a figure is embedded from this folder."""

    @abstractmethod
    def tex(self) -> str: ...


@dataclass(frozen=True)
class Heading(Block):
    text: str
    level: int = 2

    def markdown(self) -> str:
        return f"{'#' * self.level} {self.text}"

    def html(self, figures: Path) -> str:
        return f"<h{self.level}>{inline_html(self.text)}</h{self.level}>"

    def tex(self) -> str:
        return rf"\{'sub' * (self.level - 2)}section*{{{inline_tex(self.text)}}}"


@dataclass(frozen=True)
class Text(Block):
    text: str

    def markdown(self) -> str:
        return self.text

    def html(self, figures: Path) -> str:
        return f"<p>{inline_html(self.text)}</p>"

    def tex(self) -> str:
        return inline_tex(self.text)


@dataclass(frozen=True)
class Items(Block):
    items: Sequence[str]
    small: bool = False  # in print

    def markdown(self) -> str:
        return "\n".join(f"- {item}" for item in self.items)

    def html(self, figures: Path) -> str:
        return f"<ul>{''.join(f'<li>{inline_html(item)}</li>' for item in self.items)}</ul>"

    def tex(self) -> str:
        lines = "\n".join(rf"\item {inline_tex(item)}" for item in self.items)
        text = f"\\begin{{itemize}}\n{lines}\n\\end{{itemize}}"
        return f"{{\\footnotesize\n{text}}}" if self.small else text


@dataclass(frozen=True)
class Grid(Block):
    """A table of words; `shares` are the columns' shares of a printed line."""

    heads: Sequence[str]
    lines: Sequence[Sequence[str]]
    shares: Sequence[float] = field(default_factory=list)

    def markdown(self) -> str:
        lines = [[cell.replace("|", "\\|") for cell in line] for line in self.lines]
        return markdown_table(list(self.heads), lines, numbers=False).rstrip()

    def html(self, figures: Path) -> str:
        return html_table(
            list(self.heads), [[(inline_html(cell), _sort_key(cell)) for cell in line] for line in self.lines]
        )

    def tex(self) -> str:
        shares = self.shares or [1 / len(self.heads)] * len(self.heads)
        gap = r"\dimexpr %.3f\linewidth-2\tabcolsep\relax"
        layout = "".join(rf">{{\raggedright\arraybackslash}}p{{{gap % share}}}" for share in shares)
        head = " & ".join(rf"\textbf{{{inline_tex(text)}}}" for text in self.heads)
        body = "\n".join(" & ".join(inline_tex(cell) for cell in line) + r" \\[1pt]" for line in self.lines)
        return (
            "{\\footnotesize\n"
            rf"\begin{{longtable}}{{{layout}}}"
            f"\n\\toprule\n{head} \\\\\n\\midrule\n\\endhead\n{body}\n\\bottomrule\n\\end{{longtable}}}}"
        )


@dataclass(frozen=True)
class Numbers(Block):
    """A table of results with its notes; the LaTeX one is a file of its own."""

    table: Table

    def markdown(self) -> str:
        notes = "\\\n".join(self.table.notes)
        return f"{self.table.caption}\n\n{to_markdown(self.table)}\n{notes}".rstrip()

    def html(self, figures: Path) -> str:
        notes = "".join(f"<p class=note>{inline_html(note)}</p>" for note in self.table.notes)
        return f"<p>{inline_html(self.table.caption)}</p>{to_html(self.table)}{notes}"

    def tex(self) -> str:
        return rf"\input{{tables/{self.table.name}}}"


@dataclass(frozen=True)
class Picture(Block):
    """`width`: share of a printed line."""

    name: str
    caption: str
    width: float = 1.0

    def markdown(self) -> str:
        return f"![{self.caption}](figures/{self.name}.png)"

    def html(self, figures: Path) -> str:
        data = base64.b64encode((figures / f"{self.name}.png").read_bytes()).decode()
        caption = html.escape(self.caption, quote=True)
        image = f'<img alt="{caption}" src="data:image/png;base64,{data}">'
        return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"

    def tex(self) -> str:
        return (
            "\\begin{figure}[htbp]\n\\centering\n"
            rf"\includegraphics[width={self.width:g}\linewidth,height=0.45\textheight,keepaspectratio]"
            f"{{figures/{self.name}.pdf}}"
            f"\n\\caption{{{inline_tex(self.caption)}}}\n\\end{{figure}}"
        )


def _sort_key(text: str) -> str:
    """Numbers sort as numbers."""
    found = NUMBER.match(text)
    return found.group().replace(",", "") if found else text


def to_readme(blocks: Sequence[Block]) -> str:
    return "\n\n".join(block.markdown() for block in blocks) + "\n"
