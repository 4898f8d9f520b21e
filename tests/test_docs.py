"""What the pages promise: links lead somewhere, the commands they show exist, README stays a page."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from safeecgmatch.cli import app
from tests.conftest import ROOT

PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{file.name}" for file in sorted((ROOT / "docs").glob("*.md")))]
LONGEST_README = 1000
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^ {4,}(.+)$", re.MULTILINE)
SPAN = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
# Where a shell would take it for a command: at the beginning, after another one, after a variable.
COMMAND = re.compile(r"(?:^|&& |\w=\S+ )safeecgmatch(?: ([^&|#\n]*))?", re.MULTILINE)


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@cache
def anchors(file: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", file.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: str, text: str) -> list[str]:
    broken = []
    for link in LINK.findall(FENCED.sub("", text)):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


def commands(text: str) -> list[str]:
    """The arguments of every `safeecgmatch` in code blocks and code spans."""
    prose = FENCED.sub("", text)
    spans = [" ".join(span.split()) for span in SPAN.findall(INDENTED.sub("", prose))]
    code = [*FENCED.findall(text), *INDENTED.findall(prose), *spans]
    return [arguments.strip() for piece in code for arguments in COMMAND.findall(piece)]


def mistake(arguments: str) -> str:
    """The first word that the command line does not know, or nothing."""
    command: Any = typer.main.get_command(app)
    words = shlex.split(arguments)
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return words[0]
        command = command.commands[words.pop(0)]
    known = {"--help", *(option for parameter in command.params for option in parameter.opts)}
    return next((word for word in words if word.startswith("-") and word.partition("=")[0] not in known), "")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str) -> None:
    assert broken_links(page, read(page)) == []


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page: str) -> None:
    assert {shown: word for shown in commands(read(page)) if (word := mistake(shown))} == {}


def test_mistakes_are_found() -> None:
    text = "[a](docs/none.md) [b](README.md#none) [c](#adding-a-method)\n\n    X=1 safeecgmatch mlflow uo  # no\n\n"
    text += "`safeecgmatch\nrun --no-such` `safeecgmatch run --jobs 2` `src/safeecgmatch x`\n"
    assert broken_links("CONTRIBUTING.md", text) == ["docs/none.md", "README.md#none"]
    assert [mistake(shown) for shown in commands(text)] == ["uo", "--no-such", ""]
    assert len([shown for page in PAGES for shown in commands(read(page))]) > 30


def test_every_page_is_in_the_readme() -> None:
    linked = LINK.findall(read("README.md"))
    assert [page for page in PAGES[1:] if page not in linked] == []


def test_readme_is_a_page() -> None:
    words = [word for word in read("README.md").split() if re.search(r"\w", word)]  # the rules of tables are none
    assert len(words) <= LONGEST_README
