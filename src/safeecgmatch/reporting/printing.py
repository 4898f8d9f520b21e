"""Tables as LaTeX and Markdown. Numbers are rounded here and nowhere before."""

from __future__ import annotations

import math
import re
from collections import Counter
from decimal import ROUND_HALF_EVEN, Decimal
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from safeecgmatch.reporting.names import Name, higher_is_better, is_ranked
from safeecgmatch.reporting.rows import Row
from safeecgmatch.reporting.tables import Column, Table

TEMPLATES = Path(__file__).with_name("templates")
MISSING = {"tex": "--", "md": "–"}
MINUS = {"tex": "$-$", "md": "-"}
PLUS_MINUS = {"tex": r"$\pm$", "md": "±"}
DAGGER = {"tex": r"$^{\dagger}$", "md": "†"}
MARKED = {
    "tex": {"best": r"\textbf{%s}", "second": r"\underline{%s}"},
    "md": {"best": "**%s**", "second": "<ins>%s</ins>"},
}
TEX_SPECIAL = {character: rf"\{character}" for character in "%&_#$"}
TEX_SPECIAL |= {"±": r"$\pm$", "†": r"$\dagger$", "≠": r"$\neq$", "<": "$<$", ">": "$>$", "–": "--"}
TEX_SPECIAL |= {"↑": r"$\uparrow$", "↓": r"$\downarrow$", "≤": r"$\leq$", "≥": r"$\geq$", "×": r"$\times$"}
OWN_ROWS = ("full", "safeecgmatch")  # of the paper's tables
TEX_TOKEN = re.compile(rf"λ_sum = (\S+)|(lambda_sum|λ_sum)|([{''.join(TEX_SPECIAL)}])")


def rounded(value: float) -> str:
    """Half-even, on the decimal digits that the CSV shows."""
    return str(Decimal(repr(float(value))).quantize(Decimal("0.001"), rounding=ROUND_HALF_EVEN))


def tex(text: str) -> str:
    """Plain text as LaTeX."""

    def replacement(found: re.Match[str]) -> str:
        weight, word, character = found.groups()
        if weight:
            return r"$\lambda_{\mathrm{sum}}=" + weight.replace("1/3", r"\frac{1}{3}") + "$"
        return r"$\lambda_{\mathrm{sum}}$" if word else TEX_SPECIAL[character]

    return TEX_TOKEN.sub(replacement, text)


def signed(value: float) -> str:
    text = rounded(value)
    return text.lstrip("-") if float(text) == 0 else text if text.startswith("-") else f"+{text}"


def plus_minus(mean: float, std: float, style: str) -> str:
    """`0.843±0.009`; without ± for one seed, a dash for none."""
    if math.isnan(mean):
        return MISSING[style]
    return rounded(mean) + ("" if math.isnan(std) else PLUS_MINUS[style] + rounded(std))


def number(cell: Any, style: str, spread: bool = True) -> str:
    """A line of `Table.cells` with its mark, † for fewer seeds than asked; a gain has its sign and its interval."""
    if cell.is_gain and cell.seeds:
        text = f"{signed(cell.mean)} [{signed(cell.interval_low)}, {signed(cell.interval_high)}]"
        return text.replace("-", MINUS[style])
    text = plus_minus(cell.mean, cell.std if spread else math.nan, style)
    marked = MARKED[style].get(cell.mark, "%s") % text
    return marked + (DAGGER[style] if 0 < cell.seeds < cell.seeds_asked else "")


def arrow(table: Table, column: Column) -> str:
    """In which direction a column is better; gains are better where they are positive."""
    if all(row.is_gain for row in table.rows):
        return ""
    return "" if not is_ranked(column.metric) else " ↑" if higher_is_better(column.metric) else " ↓"


@cache
def environment() -> jinja2.Environment:
    """LaTeX needs the braces for itself; all templates use the same delimiters."""
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


def tex_name(name: Name) -> str:
    return tex(name.name) + (rf"~\cite{{{name.cite}}}" if name.cite else "")


def tabular(text_columns: int, titles: dict[str, int], heads: list[str], lines: list[str]) -> dict[str, Any]:
    """Columns below titles, each of which is above so many of them."""
    groups, rules, first = [""] * text_columns, [], text_columns + 1
    for title, columns in titles.items():
        groups.append(rf"\multicolumn{{{columns}}}{{c}}{{\textbf{{{title}}}}}")
        rules.append(rf"\cmidrule(lr){{{first}-{first + columns - 1}}}")
        first += columns
    return {
        "layout": "l" * text_columns + "c" * (first - 1 - text_columns),
        "titles": " & ".join(groups),
        "rules": " ".join(rules),
        "heads": " & ".join(rf"\textbf{{{tex(head)}}}" for head in heads),
        "lines": lines,
    }


def float_tex(name: str, caption: str, notes: list[str], parts: list[dict[str, Any]]) -> str:
    """A float that one- and two-column documents place alike; `parts` are one below the other."""
    texts = {"caption": tex(caption), "notes": [tex(note.replace("`", "")) for note in notes]}
    return render("table.tex.j2", label=f"tab:{name}", parts=parts, **texts)


def to_tex(table: Table) -> str:
    """The paper's own layout."""
    datasets = Counter(column.dataset for column in table.columns)
    titles = {tex_name(table.data_names[dataset]): columns for dataset, columns in datasets.items()}
    heads = [table.first_head, *(["OOD"] if table.show_ood else [])]
    heads += [column.header + arrow(table, column) for column in table.columns]
    part = tabular(1 + table.show_ood, titles, heads, tex_lines(table))
    return float_tex(table.name, f"{table.caption} {table.source}", table.notes, [part])


def tex_lines(table: Table) -> list[str]:
    lines: list[str] = []
    section = ""
    for row, levels in table.blocks():
        if row.section != section:
            section = row.section
            width = 1 + table.show_ood + len(table.columns)
            lines += [r"\midrule", rf"\multicolumn{{{width}}}{{l}}{{\emph{{{tex(section)}}}}} \\"]
        elif table.show_ood and lines:
            lines.append(r"\addlinespace")
        for position, (ood, values) in enumerate(levels.items()):
            cells = [tex_label(row, position), *([rf"{ood}\%"] if table.show_ood else [])]
            for value in values:
                text = number(value, "tex", table.spread)
                if value.merged:
                    text = "" if position else rf"\multirow{{{len(levels)}}}{{*}}{{{text}}}"
                cells.append(text)
            lines.append(" & ".join(cells) + r" \\")
    return lines


def tex_label(row: Row, position: int) -> str:
    """The method in the block's first line, its venue in the second."""
    if position:
        return f"({tex(row.venue)})" if position == 1 and row.venue else ""
    label = rf"\textbf{{{tex(row.label)}}}" if row.published in OWN_ROWS else tex(row.label)
    label += rf"~\cite{{{row.cite}}}" if row.cite else ""
    height = len(row.levels)
    return rf"\multirow{{{height}}}{{*}}{{{label}}}" if height > 1 and not row.venue else label


def text_heads(table: Table) -> list[str]:
    """One line of column titles, for Markdown."""
    several = len({column.dataset for column in table.columns}) > 1
    heads = [table.first_head, *(["OOD"] if table.show_ood else [])]
    for column in table.columns:
        dataset = f"{table.data_names[column.dataset].name} " if several else ""
        heads.append(f"{dataset}{column.header}{arrow(table, column)}")
    return heads


def to_markdown(table: Table) -> str:
    """What is merged is there once."""
    heads, lines, section = text_heads(table), [], ""
    for row, levels in table.blocks():
        if row.section != section:
            section = row.section
            lines.append([f"*{section}*", *[""] * (len(heads) - 1)])
        shown = {f"{ood} %": values for ood, values in levels.items()}
        if next(iter(shown.values()))[0].merged:
            shown = {f"{', '.join(map(str, levels))} %": next(iter(shown.values()))}
        for level, values in shown.items():
            labels = [row.label, *([level] if table.show_ood else [])]
            lines.append([*labels, *(number(value, "md", table.spread) for value in values)])
    return markdown_table(heads, lines)


def markdown_table(heads: list[str], lines: list[list[str]], numbers: bool = True) -> str:
    rule = ["---" if index == 0 or not numbers else "---:" for index in range(len(heads))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [heads, rule, *lines]) + "\n"
