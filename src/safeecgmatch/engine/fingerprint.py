"""What a cell's numbers depend on: the one answer, used by DVC's graph, by checkpoints and by finished results.

The folders draw the line. Modules in `engine/` and `methods/` decide predictions; whatever else they import (files,
errors, progress, config) does not, and is not counted. A method's code is its own module and every counted module
that it or the engine's entry imports, each without comments and docstrings. Nothing is imported to find that out.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from safeecgmatch.files import hash_of

SOURCES = Path(__file__).resolve().parents[2]
PACKAGE = "safeecgmatch"
DECIDING = (f"{PACKAGE}.engine.", f"{PACKAGE}.methods.")
ENTRY = f"{PACKAGE}.engine.cell"


def method_module(module: str) -> str:
    """The import name behind the switch `module`: "fixmatch" is fixmatch/method.py, "tstfc.release" its release.py."""
    return f"{PACKAGE}.methods.{module if '.' in module else f'{module}.method'}"


def code_of(module: str) -> dict[str, str]:
    """Every module that decides how the method in `module` trains, with the hash of its code."""
    found: dict[str, str] = {}
    waiting = [ENTRY, method_module(module)]
    while waiting:
        name = waiting.pop()
        file = (SOURCES / Path(*name.split("."))).with_suffix(".py")
        if name not in found and name.startswith(DECIDING) and file.is_file():
            text = file.read_text(encoding="utf-8")
            found[name] = hash_of(bare_code(text))
            waiting += imports_of(text)
    return dict(sorted(found.items()))


@cache
def imports_of(text: str) -> list[str]:
    """The names that a module's source imports, at any place in it; `from a import b` may mean a or a.b."""
    names: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return names


@cache
def bare_code(text: str) -> str:
    """The source without comments, docstrings, blank lines and trailing space: what is left decides.

    Cut from the text itself, because a printed syntax tree differs between versions of Python.
    """
    lines = [list(line) for line in text.splitlines()]
    for (first, left), (last, right) in _spans(text):
        for row in range(first, last + 1):
            start = left if row == first else 0
            end = right if row == last else len(lines[row])
            lines[row][start:end] = " " * (end - start)
    return "\n".join(stripped for line in lines if (stripped := "".join(line).rstrip()))


Place = tuple[int, int]  # row and column, from 0


def _spans(text: str) -> Iterator[tuple[Place, Place]]:
    """Where comments and docstrings stand."""
    documented = {
        node.body[0].lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node, clean=False) is not None
    }
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        docstring = token.type == tokenize.STRING and token.start[0] in documented
        if docstring or token.type == tokenize.COMMENT:
            yield (token.start[0] - 1, token.start[1]), (token.end[0] - 1, token.end[1])


def fingerprint(config: Mapping[str, Any]) -> str:
    """Of a cell with this resolved config: its code, and everything in the config, the data's hash included."""
    return hash_of([config["config_hash"], code_of(config["module"])])
