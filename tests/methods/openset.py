"""A method in the real training loop on small made-up signals, and what all open-set baselines are asked to show."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, cast

import torch
import yaml
from torch import Tensor

from safeecgmatch import config
from safeecgmatch.engine.contract import Batch, Losses, Setting
from safeecgmatch.engine.generators import Generators
from safeecgmatch.engine.loop import Training
from safeecgmatch.engine.signals import MethodData, SignalSet
from safeecgmatch.methods.base import method_class
from tests.conftest import ROOT

LEADS, SAMPLES, CLASSES = 2, 64, 3


@dataclass(frozen=True)
class FakeSource:
    """Stands for the signal store: rows of a tensor."""

    signals: Tensor

    def gather(self, rows: Tensor) -> Tensor:
        return self.signals[rows]


def waves(records: int, classes: int, seed: int) -> SignalSet:
    """Noisy sine waves whose frequency tells the class; class 3 is the unseen one."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(records) % classes
    time = torch.arange(SAMPLES) / SAMPLES
    wave = torch.sin(2 * torch.pi * (2 + 3 * labels[:, None]) * time)
    signals = wave[:, None, :] + 0.3 * torch.randn(records, LEADS, SAMPLES, generator=generator)
    return SignalSet(cast(Any, FakeSource(signals)), torch.arange(records), labels)


def section(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / "profiles" / "paper.yaml").read_text(encoding="utf-8"))["methods"][name]


def hyper_of(name: str, **changes: Any) -> Any:
    return config.validate(method_class(name).Hyper, section(name) | changes, name)


def switches_of(name: str, protocol: str, **changes: Any) -> Any:
    return config.validate(method_class(name).Switches, config.switches(name, protocol, changes), name)


def toy_training(
    name: str,
    protocol: str,
    iterations: int = 24,
    evaluate_every: int = 4,
    pool: int = 70,
    ood_level: int = 60,
    hyper: dict[str, Any] | None = None,
    switches: dict[str, Any] | None = None,
) -> Training:
    """A cell on 24 labelled and `pool` unlabelled waves, 8 + 8 per iteration, before its first iteration."""
    torch.manual_seed(3)
    labelled, unlabelled, validation = waves(24, CLASSES, 1), waves(pool, CLASSES + 1, 2), waves(30, CLASSES, 3)
    setting = Setting(CLASSES, LEADS, SAMPLES, 100, 2, iterations, evaluate_every, 8, 8, 0.01, 3, ood_level)
    rng = Generators(3)
    data = MethodData(labelled, unlabelled.without_labels(), validation)
    own_switches = switches_of(name, protocol, **(switches or {}))
    method = method_class(name)(setting, hyper_of(name, **(hyper or {})), own_switches, data, rng)
    return Training(method, labelled, unlabelled, validation, rng, "off")


def run_to(training: Training, n: int) -> None:
    while training.n < n:
        training.iterate()
        if training.n % training.setting.evaluate_every == 0:
            training.evaluate()


def one_batch(training: Training) -> Batch:
    return training.draw()[0]


def gradients(training: Training, n: int) -> dict[str, bool]:
    """Which parameters iteration `n` reaches."""
    training.method.train()
    training.method.zero_grad()
    for losses in training.method.losses(one_batch(training), n):
        losses.total.backward()
    return {name: parameter.grad is not None for name, parameter in training.method.named_parameters()}


def only_losses(training: Training, n: int) -> Losses:
    (losses,) = training.method.losses(one_batch(training), n)
    return losses


def assert_same(first: Any, second: Any) -> None:
    """Equal to the last bit, whatever the nesting."""
    assert type(first) is type(second)
    if isinstance(first, Tensor):
        assert first.dtype == second.dtype and torch.equal(first, second)
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_same(first[key], second[key])
    elif isinstance(first, list | tuple):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_same(one, other)
    else:
        assert first == second


def assert_resumes_exactly(name: str, protocol: str, stop: int, **options: Any) -> None:
    """A checkpoint at `stop`, through a file and back, continues as if nothing had happened."""
    whole = toy_training(name, protocol, **options)
    run_to(whole, stop)
    file = io.BytesIO()
    torch.save(whole.state(), file)
    file.seek(0)
    resumed = toy_training(name, protocol, **options)
    run_to(resumed, 1)  # what a resumed run did before is overwritten
    resumed.load(torch.load(file, weights_only=True))
    for training in (whole, resumed):
        run_to(training, training.setting.iterations)
    assert_same(whole.state(), resumed.state())
