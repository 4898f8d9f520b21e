"""Whether two runs/ trees hold the same bytes. Run: python benchmarks/same_runs.py BEFORE AFTER

Per kind of file it prints how many are equal, differ or are on one side only, and the first that differ: for text
the first line, for predictions.npz and model.safetensors the first array. config.yaml is compared by its keys, so that
a key that came or went is named. The exit status is 1 where anything but config.yaml differs.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import typer
from safetensors.numpy import load_file

from safeecgmatch.files import read_yaml
from safeecgmatch.predictions import read_arrays

SHOWN = 3  # differences per kind of file


def first_array(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> str:
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after:
            return f"{name} is only {'after' if name not in before else 'before'}"
        if before[name].tobytes() != after[name].tobytes():
            changed = int((before[name] != after[name]).sum()) if before[name].shape == after[name].shape else "shape"
            return f"{name}: {changed} of {before[name].size} values differ"
    return "the same arrays in another layout"


def first_line(before: Path, after: Path) -> str:
    pairs = zip_longest(before.read_text("utf-8").splitlines(), after.read_text("utf-8").splitlines(), fillvalue="")
    return next(f"line {n}: {a[:60]!r} / {b[:60]!r}" for n, (a, b) in enumerate(pairs, 1) if a != b)


def flat(content: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(content, dict):
        return {prefix: content}
    return {key: value for name, part in content.items() for key, value in flat(part, f"{prefix}.{name}").items()}


def changed_keys(before: Path, after: Path) -> str:
    old, new = flat(read_yaml(before)), flat(read_yaml(after))
    gone, come = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    changed = sorted(key for key in old.keys() & new.keys() if old[key] != new[key])
    found = {"gone": gone, "new": come, "changed": changed}
    return "; ".join(f"{word} {', '.join(keys)}" for word, keys in found.items() if keys)


EXPLAIN: dict[str, Callable[[Path, Path], str]] = {
    ".npz": lambda before, after: first_array(read_arrays(before), read_arrays(after)),
    ".safetensors": lambda before, after: first_array(load_file(before), load_file(after)),
    ".yaml": changed_keys,
}


def main(before: Path, after: Path) -> None:
    """Compare BEFORE and AFTER, two folders laid out like runs/."""
    files = {side: {file.relative_to(side) for file in side.rglob("*") if file.is_file()} for side in (before, after)}
    every = files[before] | files[after]
    differing = 0
    for kind in sorted({file.name for file in every}):
        mine = sorted(file for file in every if file.name == kind)
        both = [file for file in mine if file in files[before] and file in files[after]]
        differ = [file for file in both if (before / file).read_bytes() != (after / file).read_bytes()]
        alone = [file for file in mine if file not in both]
        typer.echo(f"{kind:18s} {len(both) - len(differ)} equal, {len(differ)} differ, {len(alone)} on one side only")
        for file in differ[:SHOWN]:
            typer.echo(f"  {file}: {EXPLAIN.get(file.suffix, first_line)(before / file, after / file)}")
        for file in alone[:SHOWN]:
            typer.echo(f"  {file}: only {'before' if file in files[before] else 'after'}")
        differing += len(differ) + len(alone) if kind != "config.yaml" else 0
    raise typer.Exit(1 if differing or not every else 0)


if __name__ == "__main__":
    typer.run(main)
