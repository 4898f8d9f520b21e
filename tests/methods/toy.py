"""A training on a handful of made-up records: real methods, real loop, no files, milliseconds per step."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from safeecgmatch.config import validate
from safeecgmatch.engine.contract import Batch, Losses, Setting
from safeecgmatch.engine.generators import Generators, derived_seed
from safeecgmatch.engine.loop import Training
from safeecgmatch.engine.method import Context, method_class
from safeecgmatch.engine.signals import MethodData, SignalSet
from safeecgmatch.profiles import compose_values
from safeecgmatch.protocols import switches as protocol_switches
from tests.conftest import ROOT

LEADS, SAMPLES, CLASSES = 2, 64, 3
BATCH, POOL = 8, 70


@dataclass(frozen=True)
class ToySource:
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
    return SignalSet(cast(Any, ToySource(signals)), torch.arange(records), labels)


def section(name: str) -> dict[str, Any]:
    """The method's hyper-parameters in the paper's profile, whatever the demo takes."""
    return {key: value for key, value in paper_methods()[name].items() if key != "switches"}


@functools.cache
def paper_methods() -> dict[str, Any]:
    return compose_values("paper", ROOT / "profiles")["methods"]


def hyper_of(name: str, **changes: Any) -> Any:
    return validate(method_class(name).Hyper, section(name) | changes, name)


def switches_of(name: str, protocol: str, **changes: Any) -> Any:
    values = protocol_switches(name, protocol, {protocol: changes})
    return validate(method_class(values.pop("module", name)).Switches, values, name)


def toy_training(
    name: str,
    protocol: str,
    iterations: int = 24,
    epoch: int = 4,
    *,
    seed: int = 3,
    width: int = 2,
    pool: int = POOL,
    leads: int = LEADS,
    sampling_rate: int = 100,
    ood_level: int = 60,
    variant: str = "full",
    lambda_sum: float | None = None,
    learning_rate: float = 0.01,
    hyper: dict[str, Any] | None = None,
    switches: dict[str, Any] | None = None,
    warm_up: int | None = None,
    batch: int = BATCH,
    sets: Sequence[SignalSet] | None = None,
) -> Training:
    """A cell on 24 labelled and `pool` unlabelled waves, 8 + 8 per iteration, before its first iteration.

    The waves have two leads; a network for more can be counted, not run. Other labelled, unlabelled and validation
    records can be given as `sets`.
    """
    assert iterations % epoch == 0, "a budget is whole epochs, as config.py demands"
    kind = method_class(protocol_switches(name, protocol, {}).get("module", name))
    setting = Setting(
        num_classes=CLASSES,
        leads=leads,
        samples=SAMPLES,
        sampling_rate=sampling_rate,
        width=width,
        iterations=iterations,
        epoch=epoch,
        warm_up=max(1, round(500 / 50_000 * iterations)) if warm_up is None else warm_up,
        labelled_batch=batch if kind.uses_unlabelled else 2 * batch,
        unlabelled_batch=batch if kind.uses_unlabelled else 0,
        learning_rate=learning_rate,
        seed=seed,
        ood_level=ood_level,
        variant=variant,
        lambda_sum=lambda_sum,
    )
    labelled, unlabelled, validation = sets or (
        waves(24, CLASSES, 1), waves(pool, CLASSES + 1, 2), waves(30, CLASSES, 3)
    )  # fmt: skip
    rng = Generators(seed)
    data = MethodData(labelled, unlabelled.without_labels(), validation)
    own = validate(kind.Hyper, section(name) | (hyper or {}), name)
    torch.manual_seed(derived_seed(seed, "weights"))
    method = kind(Context(setting, own, switches_of(name, protocol, **(switches or {})), data, rng))
    return Training(method, labelled, unlabelled, validation, waves(20, CLASSES + 1, 4), rng, "off")


def run(training: Training) -> Training:
    training.run(lambda _: None, lambda _: None)
    return training


def run_to(training: Training, n: int) -> None:
    while training.n < n:
        training.iterate()
        if training.n % training.setting.epoch == 0:
            training.evaluate()


def one_batch(training: Training) -> Batch:
    return training.draw()[0]


def all_losses(training: Training, n: int) -> list[Losses]:
    training.method.train()
    return list(training.method.losses(one_batch(training), n))


def only_losses(training: Training, n: int) -> Losses:
    (losses,) = all_losses(training, n)
    return losses


def gradients(training: Training, n: int) -> dict[str, bool]:
    """Which parameters iteration `n` reaches."""
    training.method.train()
    training.method.zero_grad()
    for losses in training.method.losses(one_batch(training), n):
        losses.total.backward()
    return {name: parameter.grad is not None for name, parameter in training.method.named_parameters()}


def weights(training: Training) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in training.method.state_dict().items()}


def bits(state: dict[str, Tensor]) -> dict[str, bytes]:
    """Comparable bit by bit, empty table bins (NaN) included."""
    return {name: value.detach().contiguous().numpy().tobytes() for name, value in state.items()}


def assert_same(first: Any, second: Any) -> None:
    """Equal to the last bit, whatever the nesting; NaN equals NaN."""
    assert type(first) is type(second)
    if isinstance(first, Tensor):
        assert first.dtype == second.dtype and first.shape == second.shape
        assert bits({"": first}) == bits({"": second})
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_same(first[key], second[key])
    elif isinstance(first, list | tuple):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_same(one, other)
    else:
        assert first == second or (first != first and second != second)


def accepted_unseen_share(training: Training) -> float:
    """Share of unseen records among all accepted pseudo-labels of a run; NaN where none was accepted."""
    rows = [row for row in training.history if row["mask_rate"]]
    if not rows:
        return float("nan")
    return sum(row["mask_rate"] * row["pseudo_ood_share"] for row in rows) / sum(row["mask_rate"] for row in rows)
