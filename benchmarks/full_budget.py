"""What every method computes at the full budget, to compare two versions. Run from the root of either version:

    PYTHONPATH=src:. python benchmarks/full_budget.py > before.txt        (a copy of this file in the older version)
    PYTHONPATH=src:. python benchmarks/full_budget.py --before before.txt

For every method and protocol it trains a toy cell of 50,000 iterations in short windows: from the first iteration on,
and across each border of a phase (warm-up, the release's 4,000, pre-trainings, rounds), evaluations included.
It prints a hash of weights and memory after each; with --before it counts what is equal and names the rest.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
import typer

from safeecgmatch.protocols import known_methods
from tests.methods.harness import run_to, toy_training

WINDOWS = [(0, 20), (496, 506), (996, 1_004), (3_996, 4_004), (4_996, 5_004), (9_497, 9_503), (9_997, 10_003)]
WINDOWS += [(14_997, 15_003), (22_998, 23_003), (24_997, 25_003)]


def fed(content: Any) -> bytes:
    """Bytes of nested tensors and plain values."""
    if isinstance(content, torch.Tensor):
        return content.detach().contiguous().numpy().tobytes()
    if isinstance(content, dict):
        return b"".join(str(key).encode() + fed(value) for key, value in content.items())
    if isinstance(content, list | tuple):
        return b"".join(fed(value) for value in content)
    return repr(content).encode()


def hashes(name: str, protocol: str) -> dict[str, str]:
    weight = 1.0 if name == "safeecgmatch" else None
    training = toy_training(name, protocol, 50_000, 1_000, lambda_sum=weight)
    found = {}
    for first, last in WINDOWS:
        training.n = first
        run_to(training, last)
        state = fed(training.method.state_dict()) + fed(training.method.memory())
        found[f"{name} {protocol} {first}-{last}"] = hashlib.sha256(state).hexdigest()[:16]
    return found


def main(
    before: Path = typer.Option(None, help="What this script printed in the other version."),
    only: str = typer.Option("", help="Methods, comma-separated; all of them if empty."),
) -> None:
    """Print the hashes, or compare them with those of another version."""
    found: dict[str, str] = {}
    for name in only.split(",") if only else known_methods():
        for protocol in ("paper", "release"):
            found |= hashes(name, protocol)
    if before is None:
        typer.echo("\n".join(f"{key} {value}" for key, value in found.items()))
        return
    old = dict(line.rsplit(" ", 1) for line in before.read_text(encoding="utf-8").splitlines())
    equal = [key for key in found if old.get(key) == found[key]]
    cells = {key.rsplit(" ", 1)[0] for key in found}
    changed = sorted({key.rsplit(" ", 1)[0] for key in found if key not in equal})
    typer.echo(
        f"{len(equal)} of {len(found)} states equal; {len(cells) - len(changed)} of {len(cells)} methods x protocols"
    )
    for cell in changed:
        typer.echo(f"  changed: {cell} from {next(key for key in found if key.startswith(cell) and key not in equal)}")


if __name__ == "__main__":
    typer.run(main)
