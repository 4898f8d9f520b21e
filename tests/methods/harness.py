"""A method on the phantom without DVC and MLflow: the real store, the real split, the real loop."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from safeecgmatch.cells import Cell
from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.data.filtering import filter_dataset
from safeecgmatch.data.phantom.archives import write_archive
from safeecgmatch.data.splits import make_split, write_split
from safeecgmatch.engine.assembly import Inputs, build, predict
from safeecgmatch.engine.fingerprint import resolve
from safeecgmatch.engine.loop import Training
from safeecgmatch.engine.signal_store import SignalStore
from safeecgmatch.predictions import final_metrics
from safeecgmatch.profiles import compose_values

ROOT = Path(__file__).resolve().parents[2]
# Independent of the demo's own budget, which is tuned for its running time.
BUDGET = {"iterations": 150, "epoch": 10, "batch": 32, "learning_rate": 0.01}
_FOLDER = tempfile.TemporaryDirectory(prefix="safeecgmatch-phantom-")


@functools.cache
def phantom_store(dataset: str = "ptbxl", records: int = 900, sampling_rate: int = 100) -> Path:
    """The `data` folder with the filtered phantom of one dataset, made once per test session."""
    folder = Path(_FOLDER.name) / f"{records}-{sampling_rate}"
    write_archive(dataset, folder / "raw" / dataset, records, seed=7, sampling_rate=sampling_rate)
    target = folder / "data" / "filtered" / dataset
    filter_dataset(dataset, folder / "raw" / dataset, target, sampling_rate, "none", workers=1)
    return folder / "data"


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
