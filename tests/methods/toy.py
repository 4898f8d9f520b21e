"""A training on a handful of made-up records: real methods, real loop, no files, milliseconds per step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from safeecgmatch.engine.contract import Setting
from safeecgmatch.engine.generators import Generators, derived_seed
from safeecgmatch.engine.loop import Training
from safeecgmatch.engine.signals import MethodData, SignalSet
from safeecgmatch.methods.base import method_class
from safeecgmatch.protocols import switches
from tests.methods.harness import demo_params

LEADS, SAMPLES, CLASSES = 12, 100, 3


@dataclass(frozen=True)
class ToySource:
    signals: Tensor

    def gather(self, rows: Tensor) -> Tensor:
        return self.signals[rows]


def toy_set(size: int, classes: int, seed: int) -> SignalSet:
    """Noisy sines whose frequency is the class; class 3 is the unseen one."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(size) % classes
    time = torch.linspace(0, 1, SAMPLES)
    waves = torch.sin(2 * torch.pi * (3.0 + 4.0 * labels[:, None, None]) * time)
    signals = waves + 0.5 * torch.randn(size, LEADS, SAMPLES, generator=generator)
    return SignalSet(ToySource(signals), torch.arange(size), labels)  # type: ignore[arg-type]


def toy_training(
    name: str,
    protocol: str,
    *,
    iterations: int = 20,
    evaluate_every: int = 10,
    seed: int = 1,
    width: int = 2,
    variant: str = "full",
    lambda_sum: float | None = None,
    hyper: dict[str, Any] | None = None,
    overrides: dict[str, Any] | None = None,
) -> Training:
    kind = method_class(name)
    half = 8
    setting = Setting(
        num_classes=CLASSES,
        leads=LEADS,
        samples=SAMPLES,
        sampling_rate=50,
        width=width,
        iterations=iterations,
        evaluate_every=evaluate_every,
        labelled_batch=half if kind.uses_unlabelled else 2 * half,
        unlabelled_batch=half if kind.uses_unlabelled else 0,
        learning_rate=0.01,
        seed=seed,
        ood_level=60,
        variant=variant,
        lambda_sum=lambda_sum,
    )
    labelled, pool, validation = toy_set(12, CLASSES, 1), toy_set(40, CLASSES + 1, 2), toy_set(30, CLASSES, 3)
    rng = Generators(seed)
    content = demo_params().methods[name] | (hyper or {})
    values = switches(name, protocol, overrides or {})
    torch.manual_seed(derived_seed(seed, "weights"))
    data = MethodData(labelled, pool.without_labels(), validation)
    method = kind(setting, kind.Hyper(**content), kind.Switches(**values), data, rng)
    return Training(method, labelled, pool, validation, rng, "off")


def run(training: Training) -> Training:
    training.run(lambda _: None, lambda _: None)
    return training


def bits(state: dict[str, Tensor]) -> dict[str, bytes]:
    """Comparable bit by bit, empty table bins (NaN) included."""
    return {name: value.detach().contiguous().numpy().tobytes() for name, value in state.items()}


def accepted_unseen_share(training: Training) -> float:
    """Share of unseen records among all accepted pseudo-labels of a run; NaN where none was accepted."""
    rows = [row for row in training.history if row["mask_rate"]]
    if not rows:
        return float("nan")
    return sum(row["mask_rate"] * row["pseudo_ood_share"] for row in rows) / sum(row["mask_rate"] for row in rows)
