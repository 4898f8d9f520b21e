"""A plan, not a measurement: memory and FLOPs of every method at paper scale, and hours on a GPU that nobody has asked.

One iteration of every method past its warm-ups is run with a network of width 2 on 32 + 32 records at 500 Hz, and every
pass through a backbone is noted with its shape. The same passes are then counted at width 64 on torch's `meta` device,
which computes nothing: floating-point operations by `torch.utils.flop_counter` (a multiply-add is two), and the bytes
that autograd keeps for the backward pass. Hours are FLOPs divided by a share of the GPU's peak.

Example: python benchmarks/gpu_plan.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest.mock import patch

import torch
import typer
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from safeecgmatch.config import PROPOSED
from safeecgmatch.engine.models import ResNet1D, parameter_count
from safeecgmatch.protocols import known_methods
from synthetic import make_training, write_rows, write_store
from train_step import Forward, recorded, ripe

GPU, PEAK = "NVIDIA A100 (SXM, 80 GB), float32 without tensor cores", 19.5e12  # FLOP/s, by its data sheet
SHARES = (0.1, 0.25, 0.5)
ITERATIONS = 50_000
WIDTH, NARROW = 64, 2
CLASSES = 3
CELLS = 12  # of each method: two datasets, two OOD levels, three seeds
MORE_CELLS = 18  # ablation and sensitivity, all of SafeECGMatch
FLOAT = 4


@dataclass(frozen=True)
class Cost:
    flops: int
    kept: int  # bytes for the backward pass


@cache
def cost(shape: torch.Size, gradient: bool) -> Cost:
    """Of one pass of a batch through the paper's backbone."""
    with torch.device("meta"):
        network, x = ResNet1D(shape[1], CLASSES, WIDTH), torch.empty(shape)
    kept: dict[int, int] = {}
    weights = {parameter.untyped_storage()._cdata for parameter in network.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    with FlopCounterMode(display=False) as counter:
        if gradient:
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                loss = network(x).sum()
            loss.backward()
        else:
            with torch.no_grad():
                network(x)
    return Cost(counter.get_total_flops(), sum(kept.values()))


@contextmanager
def with_backward(parts: list[int], calls: list[Forward]) -> Iterator[None]:
    """Note after how many passes each backward comes: it frees what its passes have kept."""
    original = Tensor.backward

    def backward(self: Tensor, *arguments: object, **options: object) -> None:
        parts.append(len(calls))
        original(self, *arguments, **options)

    with patch.object(Tensor, "backward", backward):
        yield


def iteration(data: Path, method: str) -> tuple[Cost, int]:
    """What one iteration costs at paper scale, and the bytes of weights, gradients and Adam's averages."""
    training = ripe(make_training(data, method, NARROW, iterations=10, epoch=2, warm_up=1))
    calls: list[Forward] = []
    ends: list[int] = []
    with recorded(calls), with_backward(ends, calls):
        training.iterate()
    flops = sum(cost(call.shape, call.gradient).flops for call in calls)
    kept, start = 0, 0
    for end in ends:
        kept = max(kept, sum(cost(call.shape, True).kept for call in calls[start:end] if call.gradient))
        start = end
    wide = make_training(data, method, WIDTH, iterations=10, epoch=2, warm_up=1).method
    trained = sum(parameter.numel() for parameter in wide.parameters() if parameter.requires_grad)
    return Cost(flops, kept), FLOAT * (parameter_count(wide) + 3 * trained)


def main(only: str = typer.Option("", help="Methods, comma-separated; all of them if empty.")) -> None:
    """Print the plan as a Markdown table."""
    print("| method | GFLOP per iteration | memory, GB | of it kept for backward, GB | hours per cell at 25 % |")
    print("|---|---|---|---|---|")
    hours = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        write_store(data, 400, 500)
        write_rows(data, 400)
        for method in only.split(",") if only else known_methods():
            step, weights = iteration(data, method)
            hours[method] = step.flops * ITERATIONS / PEAK / 3600
            memory = (step.kept + weights) / 1e9
            row = f"{step.flops / 1e9:.0f} | {memory:.2f} | {step.kept / 1e9:.2f} | {hours[method] / 0.25:.1f}"
            print(f"| {method} | {row} |", flush=True)
    more = MORE_CELLS if PROPOSED in hours else 0
    total = CELLS * sum(hours.values()) + more * hours.get(PROPOSED, 0.0)
    count = CELLS * len(hours) + more
    print(f"\n{count} cells of {ITERATIONS} iterations on one {GPU} ({PEAK / 1e12} TFLOP/s):\n")
    for share in SHARES:
        print(f"- at {share:.0%} of its peak {total / share:.0f} hours")


if __name__ == "__main__":
    typer.run(main)
