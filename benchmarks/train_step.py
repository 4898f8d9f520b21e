"""What an iteration costs besides its networks. Run: python benchmarks/train_step.py [methods | host | memory | pool]

methods: per method, the time of a whole iteration (views, sampling, losses, bookkeeping, networks, Adam) and its ratio
         to the bare forward + backward + Adam of the same networks on the same batch shapes, written with plain Conv1d.
         Both are timed in turns in one run. Width 64, 100 Hz, 32 + 32 records, every loss term active.
host:    everything but the networks at 500 Hz (32 labelled, 32 unlabelled with three views), as a multiple of
         torch.randn(128, 12, 5000) timed in the same run.
memory:  peak anonymous memory of SafeECGMatch at paper scale (width 64, 500 Hz, 32 + 32 records).
pool:    iteration time with 1,000 and with 30,000 records in the pool, in turns.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

from safeecgmatch.engine.loop import Training
from safeecgmatch.engine.models import ResNet1D
from safeecgmatch.protocols import known_methods
from synthetic import make_training, write_rows, write_store

app = typer.Typer(help=__doc__, add_completion=False)
THREADS = typer.Option(2, help="Threads of torch.")
RECORDS = typer.Option(1500, min=400, help="Records of the store; 278 of them are labelled or held out.")


class PlainBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv1d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm1d(outputs), nn.BatchNorm1d(outputs)
        shortcut = nn.Sequential(nn.Conv1d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm1d(outputs))
        self.shortcut = shortcut if stride != 1 or inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


def plain_resnet(channels: int, width: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv1d(channels, width, 7, 2, 3, bias=False), nn.BatchNorm1d(width), nn.ReLU()]
    layers.append(nn.MaxPool1d(3, 2, 1))
    inputs = width
    for stage in range(4):
        outputs = width * 2**stage
        layers += [PlainBlock(inputs, outputs, 1 if stage == 0 else 2), PlainBlock(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(inputs, 3))


@dataclass(frozen=True)
class Forward:
    """One pass through a backbone as a method makes it."""

    network: int
    shape: torch.Size
    training: bool
    gradient: bool


@contextmanager
def recorded(calls: list[Forward]) -> Iterator[None]:
    original = ResNet1D.features

    def features(self: ResNet1D, x: Tensor) -> Tensor:
        calls.append(Forward(id(self), x.shape, self.training, torch.is_grad_enabled()))
        return original(self, x)

    with patch.object(ResNet1D, "features", features):
        yield


def bare_iteration(calls: list[Forward], steps: int, width: int) -> Callable[[], None]:
    """The recorded passes through plain networks: forward, backward, Adam, and nothing else."""
    networks = {call.network: plain_resnet(call.shape[1], width) for call in calls}
    inputs = [torch.randn(call.shape) for call in calls]
    optimizer = torch.optim.Adam([p for network in networks.values() for p in network.parameters()], lr=1e-3)

    def run() -> None:
        optimizer.zero_grad()
        for call, x in zip(calls, inputs, strict=True):
            network = networks[call.network].train(call.training)
            with torch.set_grad_enabled(call.gradient):
                output = network(x).sum()
            if call.gradient:
                output.backward()
        for _ in range(steps):
            optimizer.step()

    return run


def seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def in_turns(first: Callable[[], object], second: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Medians of both, timed alternately so that the machine's moods fall on both alike."""
    times = [(seconds(first), seconds(second)) for _ in range(rounds)]
    return statistics.median(a for a, _ in times), statistics.median(b for _, b in times)


def ripe(training: Training) -> Training:
    """Past every warm-up, phase and queue, evaluations included."""
    while training.n < training.setting.iterations - 1:
        training.iterate()
        if training.n % training.setting.epoch == 0:
            training.evaluate()
    return training


@app.command()
def methods(width: int = 64, rounds: int = 3, only: str = "", records: int = RECORDS, threads: int = THREADS) -> None:
    """Iteration time per method and its ratio to the bare networks."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        write_store(data, records, 100)
        write_rows(data, records)
        for name in only.split(",") if only else known_methods():
            short = {"iterations": 10, "epoch": 2, "warm_up": 1, "threads": threads}
            training = ripe(make_training(data, name, width, **short))
            calls: list[Forward] = []
            made = training.optimizer.state_dict()["state"]
            before = max((float(state["step"]) for state in made.values()), default=0.0)
            with recorded(calls):
                training.iterate()
            after = max(float(state["step"]) for state in training.optimizer.state_dict()["state"].values())
            bare = bare_iteration(calls, round(after - before), width)
            bare()
            ours, plain = in_turns(training.iterate, bare, rounds)
            rows = sum(call.shape[0] for call in calls)
            typer.echo(f"{name:13s} {ours:7.3f} s, bare {plain:7.3f} s, ratio {ours / plain:5.2f} ({rows} inputs)")


@app.command()
def host(rounds: int = 15, records: int = RECORDS, threads: int = THREADS) -> None:
    """All but the networks at 500 Hz, as a multiple of torch.randn(128, 12, 5000)."""

    def cheap(self: ResNet1D, x: Tensor) -> Tensor:
        pooled = x[..., ::500].mean(dim=2) @ self.stem.weight.sum(dim=2).T
        return F.normalize(F.pad(pooled, (0, self.dim - pooled.shape[1])), dim=1)

    with tempfile.TemporaryDirectory() as folder, patch.object(ResNet1D, "features", cheap):
        data = Path(folder)
        write_store(data, records, 500)
        write_rows(data, records)
        training = make_training(data, "calimatch", 64, iterations=10_000, threads=threads)
        training.iterate()
        ours, noise = in_turns(training.iterate, lambda: torch.randn(128, 12, 5000), rounds)
        typer.echo(f"host side {ours:.3f} s, torch.randn(128, 12, 5000) {noise:.3f} s, ratio {ours / noise:.2f}")


def anonymous_bytes(field: str = "RssAnon") -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


@app.command()
def memory(width: int = 64, iterations: int = 3, records: int = RECORDS, threads: int = THREADS) -> None:
    """Peak anonymous memory of SafeECGMatch at paper scale; the mapped store does not count."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        write_store(data, records, 500)
        write_rows(data, records)
        training = make_training(data, "safeecgmatch", width, iterations=50, epoch=50, warm_up=1, threads=threads)
        peak = 0
        saved = torch.autograd.graph.saved_tensors_hooks

        def sample(tensor: Tensor) -> Tensor:
            nonlocal peak
            peak = max(peak, anonymous_bytes())
            return tensor

        with saved(sample, sample):
            for _ in range(iterations):
                training.iterate()
        typer.echo(f"peak anonymous memory {peak / 1e9:.2f} GB over {iterations} iterations")


@app.command()
def pool(rounds: int = 20, large: int = 30_000, threads: int = typer.Option(1)) -> None:
    """Iteration time of SafeECGMatch with 1,000 and with `large` records in the pool."""
    with tempfile.TemporaryDirectory() as folder:
        trainings = []
        for records in (1_000, large):
            data = Path(folder) / str(records)
            write_store(data, records + 278, 100)
            write_rows(data, records + 278)
            training = make_training(data, "safeecgmatch", 16, iterations=10_000, threads=threads)
            training.iterate()
            trainings.append(training)
        few, many = in_turns(trainings[0].iterate, trainings[1].iterate, rounds)
        typer.echo(f"1,000 records {few:.4f} s, {large:,} records {many:.4f} s, ratio {many / few:.2f}")


if __name__ == "__main__":
    app()
