"""Who may import whom: what decides predictions knows nothing of who launches, tracks or reports it; no circles."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import ROOT

SOURCES = ROOT / "src"
PACKAGE = "safeecgmatch"
SHARED = ""  # the modules beside the packages: config, files, metrics ...
# Every package may import itself and the shared modules; the command line may import everything.
BELOW = {
    "engine": set[str](),
    "methods": {"engine"},
    "data": {"engine"},
    "reporting": {"engine", "methods"},
    "predicting": {"engine", "data", "reporting"},
    "tracking": {"predicting"},
    "launching": {"engine", "tracking"},
}
EVERYTHING = ("cli", "cli_models")
DATASETS = f"{PACKAGE}.data.datasets"  # config.py asks it for the names of datasets


def module_name(file: Path) -> str:
    parts = file.relative_to(SOURCES).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(file): file for file in sorted((SOURCES / PACKAGE).rglob("*.py"))}


def imported(name: str) -> Iterator[str]:
    """The modules of this project that a module imports, at any place in it."""
    for node in ast.walk(ast.parse(FILES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in FILES)
        elif isinstance(node, ast.ImportFrom) and node.module in FILES:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (module if module in FILES else node.module for module in inner)


def package_of(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and (SOURCES / PACKAGE / parts[1]).is_dir() else SHARED


GRAPH = {name: set(imported(name)) - {name} for name in FILES}


def test_every_package_has_a_layer() -> None:
    assert {package_of(name) for name in FILES} == {SHARED, *BELOW}
    TopologicalSorter(BELOW).prepare()  # raises for a circle


@pytest.mark.parametrize("package", [SHARED, *BELOW])
def test_a_package_imports_only_what_is_below_it(package: str) -> None:
    allowed = BELOW.get(package, set()) | {package, SHARED}
    names = [name for name in FILES if package_of(name) == package and name.split(".")[-1] not in EVERYTHING]
    wrong = [(name, other) for name in names for other in GRAPH[name] if package_of(other) not in allowed]
    assert names and [pair for pair in wrong if pair != (f"{PACKAGE}.config", DATASETS)] == []


def test_no_module_imports_itself_through_others() -> None:
    TopologicalSorter({name: others - {PACKAGE} for name, others in GRAPH.items()}).prepare()
