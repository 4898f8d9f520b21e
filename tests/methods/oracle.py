"""Whole iterations through the real loop, compared with an oracle that is written from the specification alone.

The fixture `tagged` makes a cell (`Tagged`) whose networks and views are replaced. A `Probe` is a tiny smooth function
of every sample with batch statistics, so what it says shows which records it saw, in which view and beside which
others. A view is a fixed function of its kind and of how many such views of the same tensor came before in this
iteration. Rows, positions and labels of records are unrelated to each other, and all is in double precision.

An `Oracle` is a module with the method's names of networks, holding copies of them, and an Adam of its own. `follow`
runs the real loop to its end and compares: after every iteration the loss terms, all weights and buffers, and the
memory; at every evaluation the row of the history; in the end the weights that are kept and every branch's predictions.
"""

from __future__ import annotations

import copy
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from safeecgmatch.engine import models, views
from safeecgmatch.engine.contract import Batch, Losses
from safeecgmatch.engine.loop import Row, Training
from safeecgmatch.engine.method import method_class
from safeecgmatch.engine.signals import SignalSet
from safeecgmatch.protocols import known_methods, switches
from tests.methods.harness import CLASSES, LEADS, ToySource, toy_training

SAMPLES, LABELLED, POOL, VALIDATION, BATCH = 12, 10, 22, 14, 4
COSINES = 4
RATE = 130  # samples per second: of this cell alone
Said = dict[str, tuple[Tensor, Tensor | None]]  # by branch: log-probabilities, unseen scores


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


def pairs(o: Tensor) -> tuple[Tensor, Tensor]:
    """(outlier, inlier) probabilities of one-vs-all heads."""
    r = o.reshape(len(o), 2, CLASSES).softmax(dim=1)
    return r[:, 0], r[:, 1]


def one_vs_all(o: Tensor, y: Tensor) -> Tensor:
    """-log of the true class's inlier, and of the hardest other class's outlier probability."""
    (outlier, inlier), rows = pairs(o), torch.arange(len(y))
    negative = -(outlier + 1e-8).log()
    negative[rows, y] = 0.0
    return (-(inlier[rows, y] + 1e-8).log()).mean() + negative.max(dim=1).values.mean()


def replace_everywhere(patch: pytest.MonkeyPatch, original: Any, substitute: Any) -> None:
    """In every module of the package that imported it by name."""
    for name, module in list(sys.modules.items()):
        if name.startswith("safeecgmatch.") and vars(module).get(original.__name__) is original:
            patch.setattr(module, original.__name__, substitute)


def tagged_sets(pool: int = POOL, wave: float = 2.0) -> list[SignalSet]:
    """Labelled, pool (with unseen records) and validation records of one store, in an order that says nothing.

    Noise, with a wave that says something about the class; without it so little can be learnt that the last weights
    are not the best.
    """
    generator, sizes = torch.Generator().manual_seed(7), [LABELLED, pool, VALIDATION]
    rows = torch.randperm(sum(sizes), generator=generator).split(sizes)
    kinds = (CLASSES, CLASSES + 1, CLASSES)
    labels = [torch.arange(size) % classes for size, classes in zip(sizes, kinds, strict=True)]
    signals = torch.randn(sum(sizes), LEADS, SAMPLES, generator=generator)
    turns = torch.arange(SAMPLES) / SAMPLES
    signals[torch.cat(rows)] += wave * torch.cos(2 * torch.pi * (1 + torch.cat(labels))[:, None, None] * turns + 0.4)
    return [SignalSet(ToySource(signals), *pair) for pair in zip(rows, labels, strict=True)]


class Tagged:
    """`toy_training` with probes, tagged views and tagged records; counts the views of a tensor within an iteration."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        for name in known_methods():  # their modules have to be there before names in them are replaced
            for protocol in ("paper", "release"):
                method_class(switches(name, protocol, {}).get("module", name))
        self.patch = patch
        self.training: Training | None = None
        self.made: list[tuple[Any, Tensor]] = []  # held, so that no other tensor takes their place in memory
        replace_everywhere(patch, models.ResNet1D, Probe)
        replace_everywhere(patch, views.weak, self.counted(weak))
        replace_everywhere(patch, views.strong, self.counted(strong))
        replace_everywhere(patch, views.mask_band, lambda spectra, g: (self.check(g), mask_band(spectra))[1])

    def counted(self, view: Callable[[Tensor, int], Tensor]) -> Callable[..., Tensor]:
        def made(x: Tensor, generator: torch.Generator, rate: int = RATE) -> Tensor:
            assert rate == RATE, "the length of a masked interval depends on the sampling rate"
            self.check(generator)
            same = [one for kind, one in self.made if kind is view and one.data_ptr() == x.data_ptr()]
            self.made.append((view, x))
            return view(x, sum(one.shape == x.shape for one in same))

        return made

    def check(self, generator: torch.Generator) -> None:
        known = self.training.rng._made.values()
        assert generator in known, "no generator of the run, whose state is in the checkpoint"

    def __call__(self, name: str, protocol: str, iterations: int, epoch: int, **options: Any) -> Training:
        options = {"sets": tagged_sets(), "batch": BATCH} | options
        training = self.training = toy_training(name, protocol, iterations, epoch, sampling_rate=RATE, **options)
        draw = training.draw
        self.patch.setattr(training, "draw", lambda: (self.made.clear(), draw())[1])
        return training


@dataclass(frozen=True)
class Drawn:
    """The records of an iteration; labels and positions are found by what the samples are, not by what is said."""

    x_l: Tensor
    y_l: Tensor
    x_u: Tensor
    position_u: Tensor
    chosen: Tensor | None = None  # pool positions that the method says it drew for itself


def first_drawn(training: Training) -> Drawn:
    """What a rehearsal draws first, as the training of the same seed will."""
    batch = training.draw()[0]
    return Drawn(batch.x_l, batch.y_l, batch.x_u, batch.position_u)


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


def taken(done: Sequence[Expected]) -> list[int]:
    """How many pseudo-labels each iteration accepted."""
    return [int(one.accepted.sum()) for one in done]


class Oracle(nn.Module):
    """Copies of the method's `networks`, and what the specification does with them."""

    networks: tuple[str, ...] = ("network",)
    must_beat_early = False

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.setting, self.y_v = training.setting, training.validation.labels
        self.x_v = training.validation.batch(torch.arange(VALIDATION))
        self.x_pool = training.pool.batch(torch.arange(len(training.pool)))  # without labels, as the method
        self.adopt(training.method)
        self.start_adam()

    def adopt(self, method: Any) -> None:
        for name in self.networks:
            setattr(self, name, copy.deepcopy(getattr(method, name)))

    def start_adam(self) -> None:
        rate = self.setting.learning_rate
        self.adam = torch.optim.Adam(self.parameters(), lr=rate, betas=(0.9, 0.999), eps=1e-8, foreach=False)

    def descend(self, total: Tensor) -> None:
        self.adam.zero_grad(set_to_none=True)
        total.backward()
        self.adam.step()

    @abstractmethod
    def iterate(self, n: int, drawn: Drawn) -> Expected:
        """Iteration `n` (iterations already made), with all that happens just before and after it."""

    def predict(self, x: Tensor) -> Said:
        """Of raw records, in evaluation mode."""
        return {"main": (self.network(x).log_softmax(dim=1), None)}

    @torch.no_grad()
    def said(self) -> Said:
        """Of the validation records."""
        self.eval()
        said = self.predict(self.x_v)
        self.train()
        return said

    def right(self, scores: Tensor) -> float:
        return float((scores.argmax(dim=1) == self.y_v).double().mean())

    def evaluate(self, n: int) -> Row:
        """The row of the history after `n` iterations but for losses and rates."""
        return {"val_accuracy": self.right(self.said()["main"][0]), "competes": 1}

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
        row["mask_rate"] = float(accepted.double().mean())
        unseen = (true == CLASSES) & (pseudo < CLASSES)
        for name, hits in (("pseudo_accuracy", pseudo == true), ("pseudo_ood_share", unseen)):
            row[name] = float(hits[accepted].double().mean()) if accepted.any() else None
    return row


def follow(training: Training, oracle: Oracle, relative: float = 1e-8) -> list[Expected]:
    """Run the loop to its end beside the oracle, whose iterations are returned for a look at what happened."""
    method, labels, hidden = training.method, training.labelled.labels, training.pool.labels
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

    method.losses = watched
    training.run(after_iteration, rows.append)
    for found, wanted in ((training.best, kept.best), (training.early, kept.early)):
        assert (found is None) == (wanted is None)
        if found is not None:
            close((found.iteration, found.accuracy, found.weights), wanted, "the weights that are kept", relative)
    said, predictions = oracle.said(), method.predict(method.validate_now(len(done)).outputs)
    assert predictions.keys() == said.keys()
    close({name: (one.log_probs, one.ood_score) for name, one in predictions.items()}, said, "predictions", relative)
    return done
