"""Tables as LaTeX, Markdown and CSV. Numbers are rounded here and nowhere before."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2

from safeecgmatch.reporting.names import dataset_name, higher_is_better
from safeecgmatch.reporting.results import Entry
from safeecgmatch.reporting.tables import Column, Row, Table

TEMPLATES = Path(__file__).with_name("templates")
MISSING = {"tex": "--", "md": "–"}
TEX_SPECIAL = {character: rf"\{character}" for character in "%&_#$"}
TEX_SPECIAL |= {"±": r"$\pm$", "†": r"$\dagger$", "≠": r"$\neq$", "<": "$<$", ">": "$>$", "–": "--"}
TEX_TOKEN = re.compile(rf"λ_sum = (\S+)|(lambda_sum)|([{''.join(TEX_SPECIAL)}])")


def rounded(value: float, digits: int = 3) -> str:
    """Half-even, on the decimal digits that the CSV shows."""
    return str(Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_EVEN))


def tex(text: str) -> str:
    """Plain text as LaTeX."""

    def replacement(found: re.Match[str]) -> str:
        weight, word, character = found.groups()
        if weight:
            return r"$\lambda_{\mathrm{sum}}=" + weight.replace("1/3", r"\frac{1}{3}") + "$"
        return r"$\lambda_{\mathrm{sum}}$" if word else TEX_SPECIAL[character]

    return TEX_TOKEN.sub(replacement, text)


def number(entry: Entry, style: str) -> str:
    """`0.843±0.009` with its mark; without ± for one seed, a dash for none, † for fewer seeds than asked."""
    if entry.summary is None:
        return MISSING[style]
    plus_minus, dagger = (r"$\pm$", r"$^{\dagger}$") if style == "tex" else ("±", "†")
    text = rounded(entry.summary.mean)
    if not math.isnan(entry.summary.std):
        text += plus_minus + rounded(entry.summary.std)
    marked = {
        "tex": {"best": rf"\textbf{{{text}}}", "second": rf"\underline{{{text}}}"},
        "md": {"best": f"**{text}**", "second": f"<ins>{text}</ins>"},
    }[style].get(entry.mark, text)
    return marked + (dagger if entry.incomplete else "")


@dataclass(frozen=True)
class Group:
    """The columns of one dataset: LaTeX title, first and last column number, headers."""

    title: str
    first: int
    last: int
    headers: list[str]


@dataclass(frozen=True)
class Block:
    """Consecutive rows of one method: its LaTeX label and venue, then (OOD level, cells) per line."""

    label: str
    venue: str
    lines: list[tuple[int, list[str]]]


def arrow(column: Column) -> str:
    return r"$\uparrow$" if higher_is_better(column.metric) else r"$\downarrow$"


def groups(table: Table, offset: int, arrows: bool, cite: bool) -> list[Group]:
    found, first = [], offset + 1
    for dataset, members in groupby(table.columns, key=lambda column: column.dataset):
        columns = list(members)
        name = dataset_name(dataset)
        title = tex(name.name) + (rf"~\cite{{{name.cite}}}" if cite and name.cite else "")
        headers = [tex(column.header) + (f" {arrow(column)}" if arrows else "") for column in columns]
        found.append(Group(title, first, first + len(columns) - 1, headers))
        first += len(columns)
    return found


def blocks(table: Table) -> list[Block]:
    found = []
    lines = zip(table.rows, table.entries, strict=True)
    for _, members in groupby(lines, key=lambda line: line[0].key):
        block = list(members)
        found.append(Block(tex_label(block[0][0]), tex(block[0][0].venue), _tex_lines(block)))
    return found


def tex_label(row: Row) -> str:
    label = tex(row.label) if row.key != "full" and row.key != "safeecgmatch" else rf"\textbf{{{tex(row.label)}}}"
    return label + (rf"~\cite{{{row.cite}}}" if row.cite else "")


def _tex_lines(block: list[tuple[Row, list[Entry]]]) -> list[tuple[int, list[str]]]:
    lines = []
    for index, (row, entries) in enumerate(block):
        cells = []
        for entry in entries:
            text = number(entry, "tex")
            if entry.merged:
                text = rf"\multirow{{{len(block)}}}{{*}}{{{text}}}" if index == 0 else ""
            cells.append(text)
        lines.append((row.selection.ood, cells))
    return lines


@cache
def environment() -> jinja2.Environment:
    """LaTeX needs the braces for itself; Markdown templates use the same delimiters."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )


def render(template: str, **values: Any) -> str:
    return environment().get_template(template).render(**values)


def to_tex(table: Table) -> str:
    """The paper's own layout."""
    levels = len({row.selection.ood for row in table.rows})
    text_columns = 2 if table.template in ("summary", "benchmark") or levels > 1 else 1
    arrows = table.template in ("benchmark", "sensitivity")
    return render(
        f"{table.template}.tex.j2",
        caption=tex(table.caption),
        label=f"tab:{table.name}",
        notes=[tex(note) for note in table.notes],
        groups=groups(table, text_columns, arrows, cite=table.template in ("summary", "benchmark")),
        blocks=blocks(table),
        width=len(table.columns),
        show_ood=text_columns == 2,
    )


def to_markdown(table: Table) -> str:
    levels = len({row.selection.ood for row in table.rows})
    show_ood = table.template in ("summary", "benchmark") or levels > 1
    several = len({column.dataset for column in table.columns}) > 1
    heads = ["Method" if table.template != "sensitivity" else "λ_sum", *(["OOD"] if show_ood else [])]
    for column in table.columns:
        direction = "↑" if higher_is_better(column.metric) else "↓"
        heads.append(f"{dataset_name(column.dataset).name + ' ' if several else ''}{column.header} {direction}")
    lines = []
    for row, entries in zip(table.rows, table.entries, strict=True):
        level = [f"{row.selection.ood} %"] if show_ood else []
        lines.append([row.label, *level, *(number(entry, "md") for entry in entries)])
    return markdown_table(heads, lines)


def markdown_table(heads: list[str], lines: list[list[str]]) -> str:
    rule = ["---" if index == 0 else "---:" for index in range(len(heads))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [heads, rule, *lines]) + "\n"
