"""Time and peak memory of label propagation over a whole pool: python benchmarks/propagation.py

The target is 15,000 nodes of 64 dimensions with 40 neighbours in under 5 s and 1 GB on two cores.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
import typer

from safeecgmatch.methods.tstfc.rounds import nearest_neighbours, propagate_rounds

ROUNDS, ALPHA, CLASSES, SEEDS = 20, 0.9, 3, 150
POOLS = [(1_000, 64, 40), (15_000, 64, 40), (15_000, 512, 40), (31_138, 512, 40)]  # nodes, dimensions, neighbours


def measure(nodes: int, dimensions: int, k: int) -> tuple[float, float]:
    """(elapsed seconds, processor seconds of all threads) of one propagation."""
    features = torch.randn(nodes, dimensions, generator=torch.Generator().manual_seed(0))
    labels = torch.where(torch.arange(nodes) < SEEDS, torch.arange(nodes) % CLASSES, -1)
    wall, processor = time.perf_counter(), time.process_time()
    propagate_rounds(nearest_neighbours(features, k), labels, CLASSES, ALPHA, ROUNDS)
    return time.perf_counter() - wall, time.process_time() - processor


def peak_megabytes() -> float:
    """Of this process, PyTorch's own 200 MB included. Not ru_maxrss, which begins with the peak of its starter."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def main(most: int = typer.Option(31_138, help="Nodes of the largest pool to measure.")) -> None:
    for nodes, dimensions, k in (pool for pool in POOLS if pool[0] <= most):
        wall, processor = measure(nodes, dimensions, k)
        print(
            f"{nodes:6} nodes, {dimensions:3} dimensions, k = {k}: {wall:5.2f} s, {processor:5.2f} s of processor, "
            f"peak {peak_megabytes():4.0f} MB, {torch.get_num_threads()} threads"
        )


if __name__ == "__main__":
    typer.run(main)
