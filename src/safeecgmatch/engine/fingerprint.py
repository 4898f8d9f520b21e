"""What a cell's numbers depend on: the one answer, used by DVC's graph, by checkpoints, launchers and results.

The folders draw the line. Modules in `engine/` and `methods/` decide predictions; whatever else they import (files,
errors, progress, config) does not, and is not counted. A method's code is its own module and every counted module
that it or the engine's entry imports, each without comments and docstrings. Nothing is imported to find that out, not
even torch: `resolve` says in milliseconds what a cell would be trained with.

The same reading of imports shows what any other stage of dvc.yaml depends on (`stage_of`): all modules that it reaches,
and the files that are no Python beside them.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safeecgmatch.cells import Cell
from safeecgmatch.config import Params
from safeecgmatch.errors import UserError
from safeecgmatch.files import hash_of, read_json, sha256_of
from safeecgmatch.protocols import method_module, switches

SOURCES = Path(__file__).resolve().parents[2]
PACKAGE = "safeecgmatch"
DECIDING = (f"{PACKAGE}.engine.", f"{PACKAGE}.methods.")
DATASETS = f"{PACKAGE}.data.datasets"
LIBRARIES = ("torch", "numpy")  # whose versions decide bytes
ENTRY = f"{PACKAGE}.engine.assembly"


def code_of(module: str) -> dict[str, str]:
    """Every module that decides how the method in `module` trains, with the hash of its code."""
    found: dict[str, str] = {}
    waiting = [ENTRY, method_module(module)]
    while waiting:
        name = waiting.pop()
        if name not in found and name.startswith(DECIDING) and (text := source(name)):
            found[name] = hash_of(bare_code(text))
            waiting += imports_of(text)
    return dict(sorted(found.items()))


def stage_of(script: Path) -> dict[str, str]:
    """Every module of this package that a stage's script reaches, and what lies beside them, with hashes.

    Not the modules of the datasets: dvc.yaml names that of a stage's own dataset, so that adding one re-runs nothing.
    """
    text = script.read_text(encoding="utf-8")
    found = {script.name: hash_of(bare_code(text))}
    waiting, folders = [*imports_of(text)], set[Path]()
    while waiting:
        name = waiting.pop()
        file = module_file(name)
        if name in found or not name.startswith(PACKAGE) or file is None:
            continue
        text = file.read_text(encoding="utf-8")
        waiting += imports_of(text)
        if name == DATASETS:
            waiting += [f"{DATASETS}.{module.stem}" for module in file.parent.glob("[a-z]*.py")]
        found[name] = "" if name.startswith(f"{DATASETS}.") else hash_of(bare_code(text))
        folders.add(file.parent)
    beside = {file.relative_to(SOURCES).as_posix(): sha256_of(file) for folder in folders for file in no_python(folder)}
    return dict(sorted((name, digest) for name, digest in (found | beside).items() if digest))


def no_python(folder: Path) -> Iterator[Path]:
    """Files of a package that are not Python, those of folders that are no packages included."""
    for file in folder.iterdir():
        if file.is_dir() and not any(file.glob("*.py")) and file.name != "__pycache__":
            yield from no_python(file)
        elif file.is_file() and file.suffix != ".py":
            yield file


def module_file(name: str) -> Path | None:
    path = SOURCES / Path(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def source(name: str) -> str:
    """The text of a module, nothing where there is no such module."""
    file = module_file(name)
    return file.read_text(encoding="utf-8") if file else ""


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
    """Where comments and docstrings are."""
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


def method_of(params: Params, name: str) -> dict[str, Any]:
    """How params.yaml has this method trained: its module, that module's code, its switches, and the libraries."""
    values = switches(name, params.protocol, params.methods.get(name, {}).get("switches", {}))
    module = values.pop("module", name)
    return {"module": module, "switches": values, "code": code_of(module), "versions": versions()}


def versions() -> dict[str, str]:
    """Without local labels: 2.13.0+cpu is the same release as 2.13.0."""
    return {name: version(name).partition("+")[0] for name in LIBRARIES}


def data_of(cell: Cell, data: Path) -> dict[str, Any]:
    """The filtered records and the split of a cell, with the hash of both (that of the signals is in store.json)."""
    filtered, split = data / "filtered" / cell.dataset, data / "splits" / cell.split_path
    files = [filtered / "store.json", filtered / "records.csv", split / "split.npz", split / "summary.json"]
    for file, stage in zip(files, ("filter", "filter", "split", "split"), strict=True):
        if not file.is_file():
            raise UserError(f"{file} is missing: run the {stage} stage of {cell.path} first.")
    store, summary = read_json(files[0]), read_json(files[3])
    return {
        "hash": hash_of([sha256_of(file) for file in files[:3]]),
        "sampling_rate": store["sampling_rate"],
        "preprocessing": store["preprocessing"],
        "seen": summary["seen"],
        "unseen": summary["unseen"],
    }


def resolve(params: Params, cell: Cell, data: Path = Path("data")) -> dict[str, Any]:
    """All that decides this cell's numbers, as plain values: the content of its config.yaml.

    `config_hash` is of params and data, `fingerprint` of these, the code and the libraries. The method checks `hyper`
    and `switches` when it is built.
    """
    method = method_of(params, cell.method)
    config = {
        "cell": cell.describe(),
        "protocol": params.protocol,
        "module": method["module"],
        "model": params.model.model_dump(),
        "train": params.train.model_dump(),
        "hyper": {key: value for key, value in params.methods[cell.method].items() if key != "switches"},
        "switches": method["switches"],
        "data": data_of(cell, data),
    }
    config_hash = hash_of(config)
    fingerprint = hash_of([config_hash, method["code"], method["versions"]])
    return {**config, "versions": method["versions"], "config_hash": config_hash, "fingerprint": fingerprint}
