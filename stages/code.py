"""Stage `code`: for each method, what decides how it trains, as one small file that its cells depend on.

DVC reads and writes its whole lock file for every cell: with fifteen source files and all switches in each of a hundred
cells that takes as long as the training. Example: python stages/code.py
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

# A queued experiment must run the code of its own workspace, not that of the editable install.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import typer

from safeecgmatch.config import known_methods, load_params, switches
from safeecgmatch.errors import UserError
from safeecgmatch.files import sha256_of, write_json

ROOT = Path(__file__).resolve().parents[1]
# Imported by every cell, but without influence on what it computes; a cell reads its split, it draws none.
HARMLESS = {"errors", "files", "progress", "data.classes", "data.splits", "data.drawing"}


def sources(module: str, found: dict[str, Path]) -> dict[str, Path]:
    """The module and all of ours that it imports, read from the sources: importing torch would take seconds."""
    file = (ROOT / "src" / Path(*module.split("."))).with_suffix(".py")
    if not file.is_file() or module in found or module.removeprefix("safeecgmatch.") in HARMLESS:
        return found
    found[module] = file
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("safeecgmatch"):
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                sources(name, found)
    return found


def fingerprint(method: str, protocol: str) -> dict[str, object]:
    """Hashes of every source file that a cell of this method imports, and the switches of the protocol in force."""
    values = switches(method, protocol, {})
    files: dict[str, Path] = {"train": ROOT / "stages" / "train.py"}
    for module in ("training.session", f"methods.{values.get('module', method)}"):
        sources(f"safeecgmatch.{module}", files)
    return {"switches": values, "files": {str(file.relative_to(ROOT)): sha256_of(file) for file in files.values()}}


def main() -> None:
    """Write data/code/METHOD.json for every method that exists."""
    try:
        protocol = load_params().protocol
        for method in known_methods():
            write_json(Path("data/code") / f"{method}.json", fingerprint(method, protocol))
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    typer.run(main)
