"""Trainings for tests, without DVC and MLflow; every one is a real method in the real loop.

`toy_training` has a handful of made-up waves in memory and takes milliseconds per step: for what a method does.
`make_training` has generated ECGs (or real ones: `real_store`) behind the real store and split, and `learn` trains such
a cell to its end: for what a method learns. What makes every single iteration predictable is in `oracle.py`.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from safeecgmatch.cells import Cell
from safeecgmatch.config import PROPOSED, Params, validate
from safeecgmatch.data.filtering import filter_dataset
from safeecgmatch.data.phantom.archives import write_archive
from safeecgmatch.data.splits import make_split, write_split
from safeecgmatch.engine.assembly import Inputs, build, predict
from safeecgmatch.engine.contract import Setting
from safeecgmatch.engine.fingerprint import resolve
from safeecgmatch.engine.generators import Generators, derived_seed
from safeecgmatch.engine.loop import Training
from safeecgmatch.engine.method import Context, method_class
from safeecgmatch.engine.signal_store import SignalStore
from safeecgmatch.engine.signals import MethodData, SignalSet
from safeecgmatch.predictions import final_metrics
from safeecgmatch.profiles import compose_values
from safeecgmatch.protocols import switches as protocol_switches
from tests.conftest import ROOT, build_mirror

LEADS, SAMPLES, CLASSES = 2, 64, 3
BATCH, POOL = 8, 70


@dataclass(frozen=True)
class ToySource:
    """A signal store of the rows of a tensor."""

    signals: Tensor

    def gather(self, rows: Tensor) -> Tensor:
        return self.signals[rows]


def waves(records: int, classes: int, seed: int) -> SignalSet:
    """Noisy sine waves whose frequency shows the class; class 3 is the unseen one."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(records) % classes
    time = torch.arange(SAMPLES) / SAMPLES
    wave = torch.sin(2 * torch.pi * (2 + 3 * labels[:, None]) * time)
    signals = wave[:, None, :] + 0.3 * torch.randn(records, LEADS, SAMPLES, generator=generator)
    return SignalSet(cast(Any, ToySource(signals)), torch.arange(records), labels)


@functools.cache
def paper_methods() -> dict[str, Any]:
    return compose_values("paper", ROOT / "profiles")["methods"]


def section(name: str) -> dict[str, Any]:
    """The method's hyper-parameters in the paper's profile, whatever the demo takes."""
    return {key: value for key, value in paper_methods()[name].items() if key != "switches"}


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
    pool: int = POOL,
    batch: int = BATCH,
    hyper: dict[str, Any] | None = None,
    switches: dict[str, Any] | None = None,
    sets: Sequence[SignalSet] | None = None,
    **changes: Any,
) -> Training:
    """A cell on 24 labelled and `pool` unlabelled waves, 8 + 8 per iteration, before its first iteration.

    `changes` are fields of its `Setting`. The waves have two leads; a network for more can be counted, not run. Other
    labelled, unlabelled and validation records can be given as `sets`.
    """
    assert iterations % epoch == 0, "a budget is whole epochs, as config.py demands"
    kind = method_class(protocol_switches(name, protocol, {}).get("module", name))
    usual = {
        "leads": LEADS,
        "sampling_rate": 100,
        "width": 2,
        "warm_up": max(1, round(500 / 50_000 * iterations)),
        "learning_rate": 0.01,
        "seed": 3,
        "ood_level": 60,
    }
    setting = Setting(
        num_classes=CLASSES,
        samples=SAMPLES,
        iterations=iterations,
        epoch=epoch,
        labelled_batch=batch if kind.uses_unlabelled else 2 * batch,
        unlabelled_batch=batch if kind.uses_unlabelled else 0,
        **(usual | changes),
    )
    labelled, unlabelled, validation = sets or (
        waves(24, CLASSES, 1), waves(pool, CLASSES + 1, 2), waves(30, CLASSES, 3)
    )  # fmt: skip
    rng = Generators(setting.seed)
    data = MethodData(labelled, unlabelled.without_labels(), validation)
    own = validate(kind.Hyper, section(name) | (hyper or {}), name)
    torch.manual_seed(derived_seed(setting.seed, "weights"))
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


# Independent of the demo's own budget, which is tuned for its running time.
BUDGET = {"iterations": 150, "epoch": 10, "batch": 32, "learning_rate": 0.01}
REAL_RECORDS = 2500  # the first ones of PTB-XL; all five classes occur
_FOLDER = tempfile.TemporaryDirectory(prefix="safeecgmatch-tests-")


@functools.cache  # so `dataset` has no default: with and without it would be two stores
def phantom_store(dataset: str) -> Path:
    """The `data` folder with the filtered phantom of one dataset at 100 Hz, made once per test session."""
    folder = Path(_FOLDER.name) / "phantom"
    write_archive(dataset, folder / "raw" / dataset, 900, seed=7, sampling_rate=100)
    filter_dataset(dataset, folder / "raw" / dataset, folder / "data" / "filtered" / dataset, 100, "none", workers=1)
    return folder / "data"


@functools.cache
def real_store(material: Path) -> Path:
    """The `data` folder with single-label records of the real PTB-XL at 100 Hz, filtered once per test session."""
    raw, data = Path(_FOLDER.name) / "real" / "raw" / "ptbxl", Path(_FOLDER.name) / "real" / "data"
    build_mirror(material, "ptbxl", raw, "--limit", str(REAL_RECORDS), "--rate", "100")
    filter_dataset("ptbxl", raw, data / "filtered" / "ptbxl", 100, "none", workers=1)
    return data


@functools.cache
def split_data(data: Path, dataset: str, ood: int, seed: int, labels: int = 15, pool: int = 500) -> Path:
    store = SignalStore.open(data / "filtered" / dataset)
    split = make_split(
        store, ood=ood, seed=seed, split_seed=42, strategy="random", labels_per_class=labels, pool_size=pool,
        switches={"cinc60": "same_classes"},
    )  # fmt: skip
    write_split(split, data / "splits" / dataset / str(ood) / str(seed))
    return data


def demo_params(protocol: str = "paper", methods: dict[str, Any] | None = None, width: int = 8, **train: Any) -> Params:
    """The demo's data, the paper's hyper-parameters, with another protocol, width, train or `methods` settings."""
    demo, paper = (compose_values(name, ROOT / "profiles") for name in ("demo", "paper"))
    content = demo | {"methods": paper["methods"], "checkpoint_every": 2}
    content["protocol"] = protocol
    iterations = train.get("iterations", BUDGET["iterations"])
    content["train"] |= BUDGET | {"warm_up": max(1, round(iterations / 100))} | train
    content["model"]["width"] = width
    for name, section in (methods or {}).items():
        content["methods"][name] = content["methods"].get(name, {}) | section
    return Params.model_validate(content)


def make_training(
    name: str,
    protocol: str = "paper",
    *,
    ood: int = 60,
    seed: int = 1,
    data: Path | None = None,
    dataset: str = "ptbxl",
    variant: str = "full",
    lambda_sum: float = 1.0,
    methods: dict[str, Any] | None = None,
    labels: int = 15,
    pool: int = 500,
    width: int = 8,
    **train: Any,
) -> tuple[Training, dict[str, Any], Inputs]:
    """(training, sets to predict, inputs) of one cell, ready for its first iteration."""
    data = split_data(data or phantom_store(dataset), dataset, ood, seed, labels, pool)
    own_weight = lambda_sum if name == PROPOSED else None
    cell = Cell(dataset, name, ood, seed, variant, own_weight)
    inputs = Inputs.open(cell, data)
    training, sets = build(resolve(demo_params(protocol, methods, width, **train), cell, data), inputs)
    return training, sets, inputs


def finish(training: Training, sets: dict[str, Any], inputs: Inputs) -> dict[str, np.ndarray]:
    """Train to the end and predict with the best weights."""
    training.run(lambda _: None, lambda _: None)
    training.method.load_state_dict(training.chosen().weights)
    return predict(training.method, sets, inputs.store.records)


def learn(name: str, protocol: str = "paper", **options: Any) -> tuple[dict[str, float], Training]:
    """Train one cell to the end: its final test metrics, and the training for its history."""
    training, sets, inputs = make_training(name, protocol, **options)
    return final_metrics(finish(training, sets, inputs)), training
