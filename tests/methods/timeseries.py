"""ECGMatch, TS-TFC and CompleMatch in the real training loop on small made-up signals."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import Tensor

from safeecgmatch import config
from safeecgmatch.engine.contract import Losses, Setting
from safeecgmatch.engine.generators import Generators
from safeecgmatch.engine.loop import Training
from safeecgmatch.engine.signals import MethodData
from safeecgmatch.methods.base import method_class
from tests.methods.openset import CLASSES, LEADS, SAMPLES, assert_same, one_batch, run_to, section, waves


def toy_training(
    name: str, protocol: str, iterations: int = 24, evaluate_every: int = 4, overrides: dict[str, Any] | None = None
) -> Training:
    """A cell on 24 labelled and 60 unlabelled waves, 8 + 8 per iteration, before its first iteration."""
    values = config.switches(name, protocol, overrides or {})
    kind = method_class(values.pop("module"))
    labelled, pool, validation = waves(24, CLASSES, 1), waves(60, CLASSES + 1, 2), waves(30, CLASSES, 3)
    setting = Setting(CLASSES, LEADS, SAMPLES, 100, 2, iterations, evaluate_every, 8, 8, 0.01, 3, 60)
    rng = Generators(3)
    data = MethodData(labelled, pool.without_labels(), validation)
    hyper = config.validate(kind.Hyper, section(name), name)
    torch.manual_seed(3)
    method = kind(setting, hyper, config.validate(kind.Switches, values, name), data, rng)
    return Training(method, labelled, pool, validation, rng, "off")


def all_losses(training: Training, n: int) -> list[Losses]:
    training.method.train()
    return list(training.method.losses(one_batch(training), n))


def assert_resumes_exactly(name: str, protocol: str, stop: int, overrides: dict[str, Any] | None = None) -> None:
    """A checkpoint at `stop`, through a file and back, continues as if nothing had happened."""
    whole = toy_training(name, protocol, overrides=overrides)
    run_to(whole, stop)
    file = io.BytesIO()
    torch.save(whole.state(), file)
    file.seek(0)
    resumed = toy_training(name, protocol, overrides=overrides)
    resumed.load(torch.load(file, weights_only=True))
    for training in (whole, resumed):
        run_to(training, training.setting.iterations)
    assert_same(whole.state(), resumed.state())


def weights(training: Training) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in training.method.state_dict().items()}


class ToyNetwork(torch.nn.Module):
    """The network of the vectors: flatten - linear - BN - tanh - unit norm - linear."""

    def __init__(self, state: dict[str, Any]) -> None:
        super().__init__()
        tensors = {name: torch.tensor(value) for name, value in state.items()}
        hidden, inputs = tensors["lin.weight"].shape
        self.lin = torch.nn.Linear(inputs, hidden)
        self.bn = torch.nn.BatchNorm1d(hidden)
        self.fc = torch.nn.Linear(hidden, len(tensors["fc.weight"]))
        self.load_state_dict(tensors)
        self.eval()

    def features(self, x: Tensor) -> Tensor:
        return torch.nn.functional.normalize(torch.tanh(self.bn(self.lin(x.flatten(1)))), dim=1, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))
