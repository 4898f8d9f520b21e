"""Whole iterations through the real loop, compared with an oracle that is written from the specification alone.

`tagged_training` makes a cell whose networks and views are replaced. A `Probe` is a tiny smooth function of every
sample with batch statistics, so what it says shows which records it saw, in which view and beside which others. A view
is a fixed function of its kind and of how many such views of the same tensor came before in this iteration. Rows,
positions and labels of records are unrelated to each other, and all is in double precision.

An `Oracle` is a module with the method's names of networks, holding copies of them, and an Adam of its own. `follow`
runs the real loop to its end and compares: after every iteration the loss terms, all weights and buffers, and the
memory; at every evaluation the row of the history; in the end the weights that are kept.
"""

from __future__ import annotations

import copy
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from safeecgmatch.engine import models, views
from safeecgmatch.engine.contract import Batch, Losses
from safeecgmatch.engine.generators import Generators
from safeecgmatch.engine.loop import Row, Training
from safeecgmatch.engine.signals import SignalSet
from tests.methods.harness import CLASSES, LEADS, ToySource, toy_training

M = TypeVar("M", bound=nn.Module)
SAMPLES, LABELLED, POOL, VALIDATION, BATCH = 12, 10, 22, 14, 4
COSINES = 4
RATE = 130  # samples per second: of this cell alone


class Probe(nn.Module):
    """In place of `ResNet1D`, for any number of channels and samples."""

    dim = 5

    def __init__(self, channels: int, num_classes: int, width: int) -> None:
        super().__init__()
        self.encoder, self.norm = nn.Linear(channels * COSINES, self.dim), nn.BatchNorm1d(self.dim)
        self.fc = nn.Linear(self.dim, num_classes)
        with torch.no_grad():
            self.fc.weight.mul_(3.0)  # confident enough for pseudo-labels

    def features(self, x: Tensor) -> Tensor:
        time = (torch.arange(x.shape[-1]) + 0.5) / x.shape[-1]
        basis = torch.cos(torch.pi * time[:, None] * (torch.arange(COSINES) + 0.3))
        return F.softplus(self.norm(self.encoder((x @ basis).flatten(1))))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


def weak(x: Tensor, k: int = 0) -> Tensor:
    """The k-th weak view of the same records, counted from 0."""
    leads, samples = torch.arange(x.shape[1]), torch.arange(x.shape[2])
    return (1 + 0.2 * torch.cos(1.0 + k + leads))[:, None] * x + 0.2 * torch.sin((k + 1.0) * samples)


def strong(x: Tensor, k: int = 0) -> Tensor:
    """The k-th strong view of the same records."""
    return 0.8 * weak(x.flip(-1), k) - 0.1


def mask_band(spectra: Tensor) -> Tensor:
    """The same two bins of every record."""
    bins = torch.arange(spectra.shape[-1])
    return torch.where((bins == 2) | (bins == 3), 0.0, spectra)


def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    """-log softmax(z)_y, one value per row."""
    return -z.log_softmax(dim=1)[torch.arange(len(z)), y]


RESNET, WEAK, STRONG, MASK_BAND = models.ResNet1D, views.weak, views.strong, views.mask_band


class Views:
    """Counts the views of the same tensor within an iteration."""

    def __init__(self) -> None:
        self.rng = Generators(0)
        self.made: list[tuple[str, Tensor]] = []  # held, so that no other tensor takes their place in memory

    def new_iteration(self) -> None:
        self.made.clear()

    def count(self, kind: str, x: Tensor, generator: torch.Generator, rate: int = RATE) -> int:
        assert rate == RATE, "the length of a masked interval depends on the sampling rate"
        self.check(generator)
        same = [one for other, one in self.made if other == kind and one.data_ptr() == x.data_ptr()]
        self.made.append((kind, x))
        return sum(one.shape == x.shape for one in same)

    def check(self, generator: torch.Generator) -> None:
        assert generator in self.rng._made.values(), "no generator of the run, whose state is in the checkpoint"

    def install(self, patch: pytest.MonkeyPatch) -> None:
        replace_everywhere(patch, WEAK, lambda x, g: weak(x, self.count("weak", x, g)))
        replace_everywhere(patch, STRONG, lambda x, g, rate: strong(x, self.count("strong", x, g, rate)))
        replace_everywhere(patch, MASK_BAND, lambda spectra, g: (self.check(g), mask_band(spectra))[1])


MADE = Views()


def replace_everywhere(patch: pytest.MonkeyPatch, original: Any, substitute: Any) -> None:
    """In every module of the package that imported it by name."""
    for name, module in list(sys.modules.items()):
        if name.startswith("safeecgmatch.") and vars(module).get(original.__name__) is original:
            patch.setattr(module, original.__name__, substitute)


def tagged_sets() -> list[SignalSet]:
    """Labelled, pool (with unseen records) and validation records of one store, in an order that says nothing.

    Noise, with a wave that says something about the class.
    """
    generator, sizes = torch.Generator().manual_seed(7), [LABELLED, POOL, VALIDATION]
    rows = torch.randperm(sum(sizes), generator=generator).split(sizes)
    kinds = (CLASSES, CLASSES + 1, CLASSES)
    labels = [torch.arange(size) % classes for size, classes in zip(sizes, kinds, strict=True)]
    signals = torch.randn(sum(sizes), LEADS, SAMPLES, generator=generator)
    turns = torch.arange(SAMPLES) / SAMPLES
    signals[torch.cat(rows)] += 2.0 * torch.cos(2 * torch.pi * (1 + torch.cat(labels))[:, None, None] * turns + 0.4)
    return [SignalSet(cast(Any, ToySource(signals)), *pair) for pair in zip(rows, labels, strict=True)]


def noise_sets(pool: int = POOL) -> list[SignalSet]:
    """As `tagged_sets`, of noise alone: so little can be learnt that the last weights are not the best."""
    generator, sizes = torch.Generator().manual_seed(7), [LABELLED, pool, VALIDATION]
    source = ToySource(torch.randn(sum(sizes), LEADS, SAMPLES, generator=generator))
    rows = torch.randperm(sum(sizes), generator=generator).split(sizes)
    kinds = (CLASSES, CLASSES + 1, CLASSES)
    labels = [torch.arange(size) % classes for size, classes in zip(sizes, kinds, strict=True)]
    return [SignalSet(cast(Any, source), *pair) for pair in zip(rows, labels, strict=True)]


def tagged_training(
    patch: pytest.MonkeyPatch, name: str, protocol: str, iterations: int, epoch: int, **options: Any
) -> Training:
    """`toy_training` with probes, tagged views and tagged records, for a test with the fixture `tagged`."""
    toy_training(name, protocol)  # the method's modules have to be there before names in them are replaced
    replace_everywhere(patch, RESNET, Probe)
    MADE.install(patch)
    training = toy_training(
        name, protocol, iterations, epoch, sampling_rate=RATE,
        **({"sets": tagged_sets(), "batch": BATCH} | options),
    )  # fmt: skip
    MADE.rng = training.rng
    draw = training.draw

    def draw_for_a_new_iteration() -> tuple[Batch, Tensor]:
        MADE.new_iteration()
        return draw()

    patch.setattr(training, "draw", draw_for_a_new_iteration)
    return training


@dataclass(frozen=True)
class Drawn:
    """The records of an iteration; labels and positions are found by what the samples are, not by what is said."""

    x_l: Tensor
    y_l: Tensor
    x_u: Tensor
    position_u: Tensor
    chosen: Tensor | None = None  # pool positions that the method says it drew for itself


def found_in(x: Tensor, known: SignalSet) -> Tensor:
    """The positions of raw records in a set."""
    same = (x[:, None] == known.batch(torch.arange(len(known)))[None]).all(dim=3).all(dim=2)
    assert bool((same.sum(dim=1) == 1).all()), "the batch holds something that is no raw record of its set"
    return same.int().argmax(dim=1)


@dataclass(frozen=True)
class Expected:
    """One iteration by the specification: unweighted terms, their weighted sum, and what the monitor gets."""

    total: Tensor
    terms: dict[str, Tensor]
    accepted: Tensor | None = None
    pseudo: Tensor | None = None
    position: Tensor | None = None  # in the pool, of accepted records; None: those of the batch
    rates: dict[str, Tensor] = field(default_factory=dict)


class Oracle(nn.Module):
    """Subclass: adopt the networks under the method's names, then `start_adam`."""

    must_beat_early = False

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.setting = training.setting
        labels = training.validation.labels
        assert labels is not None
        self.y_v, self.x_v = labels, training.validation.batch(torch.arange(VALIDATION))
        self.x_pool = training.pool.batch(torch.arange(len(training.pool)))  # without labels, as the method

    def adopt(self, module: M) -> M:
        return copy.deepcopy(module)

    def start_adam(self) -> None:
        rate = self.setting.learning_rate
        self.adam = torch.optim.Adam(self.parameters(), lr=rate, betas=(0.9, 0.999), eps=1e-8, foreach=False)

    def descend(self, total: Tensor) -> None:
        self.adam.zero_grad(set_to_none=True)
        total.backward()
        self.adam.step()

    def accuracy(self, network: Callable[[Tensor], Tensor]) -> float:
        """Of class scores for the raw validation records, in evaluation mode."""
        self.eval()
        with torch.no_grad():
            right = network(self.x_v).argmax(dim=1) == self.y_v
        self.train()
        return float(right.double().mean())

    @abstractmethod
    def iterate(self, n: int, drawn: Drawn) -> Expected:
        """Iteration `n` (iterations already made), with all that happens just before and after it."""

    @abstractmethod
    def evaluate(self, n: int) -> Row:
        """The row of the history after `n` iterations but for losses and rates, at least val_accuracy."""

    def after_evaluation(self, n: int, row: Row) -> None:
        """What happens when the weights of this evaluation are kept or not."""

    def memory(self) -> dict[str, Any]:
        """What `Method.memory` must hold, or the part of it that is compared."""
        return {}


def close(found: Any, wanted: Any, what: str, relative: float = 1e-8) -> None:
    """Equal but for rounding, whatever the nesting."""
    if isinstance(wanted, dict):
        for key in wanted:
            close(found[key], wanted[key], f"{what}: {key}", relative)
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted), what
        for one, other in zip(found, wanted, strict=True):
            close(one, other, what, relative)
    elif isinstance(wanted, Tensor):
        message = lambda text: f"{what}\n{text}"  # noqa: E731
        torch.testing.assert_close(found, wanted, rtol=relative, atol=relative, equal_nan=True, msg=message)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=relative, abs=relative, nan_ok=True), what
    else:
        assert found == wanted, what


@dataclass
class Kept:
    """Strictly better validation accuracy, so the earliest wins a tie; early phases count where nothing competed."""

    must_beat_early: bool
    best: tuple[int, float, dict[str, Tensor]] | None = None
    early: tuple[int, float, dict[str, Tensor]] | None = None

    def add(self, n: int, row: Row, oracle: Oracle) -> None:
        accuracy = row["val_accuracy"]
        candidate = n, accuracy, {name: value.clone() for name, value in oracle.state_dict().items()}
        if not row.get("competes", True):
            if self.early is None or accuracy > self.early[1]:
                self.early = candidate
            return
        bars = [self.best, self.early if self.must_beat_early else None]
        if all(bar is None or accuracy > bar[1] for bar in bars):
            self.best = candidate


def monitored(done: list[Expected], drawn: list[Drawn], hidden: Tensor) -> Row:
    """The means of some iterations as the history has them; hidden labels serve here alone."""
    count = len(done)
    row: Row = {"loss.total": sum(one.total.item() for one in done) / count}
    for prefix, parts in (("loss.", [one.terms for one in done]), ("", [one.rates for one in done])):
        for name in {name for part in parts for name in part}:
            row[prefix + name] = sum(part[name].item() for part in parts if name in part) / count
    judged = [
        (one.accepted, one.pseudo, hidden[records.position_u if one.position is None else one.position])
        for one, records in zip(done, drawn, strict=True)
        if one.accepted is not None
    ]
    if judged:
        accepted, pseudo, true = (torch.cat(parts) for parts in zip(*judged, strict=True))
        taken = int(accepted.sum())
        row["mask_rate"] = taken / len(accepted)
        row["pseudo_accuracy"] = float((pseudo == true)[accepted].double().mean()) if taken else None
        unseen = (true == CLASSES) & (pseudo < CLASSES)
        row["pseudo_ood_share"] = float(unseen[accepted].double().mean()) if taken else None
    return row


def follow(training: Training, oracle: Oracle, relative: float = 1e-8) -> list[Expected]:
    """Run the loop to its end beside the oracle, whose iterations are returned for a look at what happened."""
    method, labels, hidden = training.method, training.labelled.labels, training.pool.labels
    assert labels is not None and hidden is not None
    drawn: list[Drawn] = []
    yielded: list[Losses] = []
    rows: list[Row] = []
    done: list[Expected] = []
    kept, evaluated = Kept(oracle.must_beat_early), 0
    losses = method.losses

    def watched(batch: Batch, n: int) -> Iterator[Losses]:
        x_u = batch.x_u if len(batch.x_u) else oracle.x_pool[:0]
        y_l, position_u = labels[found_in(batch.x_l, training.labelled)], found_in(x_u, training.pool)
        for part in losses(batch, n):
            yielded.append(part)
            yield part
        drawn.append(Drawn(batch.x_l, y_l, x_u, position_u, yielded[-1].position))

    def after_iteration(_: Training) -> None:
        nonlocal evaluated
        n = len(done)
        expected = oracle.iterate(n, drawn[n])
        done.append(expected)
        terms = {name: value for part in yielded for name, value in part.terms.items()}
        assert terms.keys() == expected.terms.keys()
        close(terms, expected.terms, f"iteration {n}", relative)
        close(sum(part.total for part in yielded), expected.total, f"total loss of iteration {n}", relative)
        yielded.clear()
        if (n + 1) % oracle.setting.epoch == 0:
            row = monitored(done[evaluated:], drawn[evaluated:], hidden) | oracle.evaluate(n + 1)
            close(rows.pop(), row, f"the row after {n + 1} iterations", relative)
            kept.add(n + 1, row, oracle)
            oracle.after_evaluation(n + 1, row)
            evaluated = n + 1
        assert not rows, f"an evaluation after {n + 1} iterations"
        assert method.state_dict().keys() == oracle.state_dict().keys()
        close(method.state_dict(), oracle.state_dict(), f"weights after iteration {n}", relative)
        close(method.memory(), oracle.memory(), f"memory after iteration {n}", relative)

    method.losses = watched  # type: ignore[method-assign]
    training.run(after_iteration, rows.append)
    for found, wanted in ((training.best, kept.best), (training.early, kept.early)):
        assert (found is None) == (wanted is None)
        if found is not None and wanted is not None:
            close((found.iteration, found.accuracy, found.weights), wanted, "the weights that are kept", relative)
    return done
