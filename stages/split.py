"""Stage `split`: which rows are labelled, unlabelled, for validation and for test. Index lists only, never signals.

Example: python stages/split.py --dataset ptbxl --ood 30 --seed 1
"""

from __future__ import annotations

import sys
from pathlib import Path

# A queued experiment must run the code of its own workspace, not that of the editable install.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import typer

from safeecgmatch.config import load_params
from safeecgmatch.data.splits import make_split, write_split
from safeecgmatch.engine.signal_store import SignalStore
from safeecgmatch.errors import one_sentence
from safeecgmatch.protocols import switches


def main(
    dataset: str = typer.Option(..., help="A section of `data` in params.yaml."),
    ood: int = typer.Option(..., min=0, max=99, help="Percentage of unseen classes in the pool."),
    seed: int = typer.Option(..., min=0, help="Run seed: draws the labelled set and the pool."),
    arm: str = typer.Option("", help="seen_pool: no unseen records in the pool; val150: 50 validation labels a class."),
) -> None:
    """Write data/splits/DATASET/OOD/SEED, for an arm data/splits/DATASET/OOD-ARM/SEED."""
    with one_sentence():
        params = load_params()
        source = params.data.source(dataset)
        split = make_split(
            SignalStore.open(Path("data/filtered") / dataset),
            ood=ood,
            seed=seed,
            split_seed=seed if params.split.seed == "run" else params.split.seed,
            strategy=params.split.strategy,
            labels_per_class=source.labels_per_class,
            pool_size=source.pool_size,
            switches=switches("data", params.protocol, params.data.switches),
            arm=arm,
        )
    write_split(split, Path("data/splits") / dataset / (f"{ood}-{arm}" if arm else str(ood)) / str(seed))
    for warning in split.summary.get("warnings", []):
        print(f"warning: {warning}", file=sys.stderr)
    sizes = ", ".join(f"{name} {size:,}" for name, size in split.summary["sizes"].items())
    repeats, straddling = split.summary["pool_duplicates"], split.summary["patients_straddling"]
    patients = f"{straddling:,} patients straddle" if split.summary["patients"] else "patients are unknown"
    print(f"{dataset} {ood} % {arm} seed {seed}: {sizes}; {repeats:,} repeats in the pool, {patients}")


if __name__ == "__main__":
    typer.run(main)
