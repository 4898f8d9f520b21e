"""One cell from its resolved config to a training that is ready to run, and to its predictions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from safeecgmatch.cells import Cell
from safeecgmatch.config import validate
from safeecgmatch.engine import device as devices
from safeecgmatch.engine.arrays import PredictedSet, pack
from safeecgmatch.engine.contract import Setting
from safeecgmatch.engine.generators import Generators, derived_seed
from safeecgmatch.engine.loop import Training
from safeecgmatch.engine.method import Context, Method, method_class
from safeecgmatch.engine.signal_store import SignalStore
from safeecgmatch.engine.signals import MethodData, SignalSet, SignalSource
from safeecgmatch.engine.split_files import Split, load_split
from safeecgmatch.engine.trajectory import TEMPERATURE, stored

EVALUATED = ("validation", "test", "open_test")


@dataclass(frozen=True)
class Inputs:
    """The filtered signals and the split of one cell."""

    store: SignalStore
    split: Split

    @classmethod
    def open(cls, cell: Cell, data: Path) -> Inputs:
        split = load_split(data / "splits" / cell.split_path)
        return cls(SignalStore.open(data / "filtered" / cell.dataset), split)


def make_setting(config: dict[str, Any], inputs: Inputs, uses_unlabelled: bool) -> Setting:
    cell, train = config["cell"], config["train"]
    half = train["batch"] // 2
    return Setting(
        num_classes=inputs.split.num_classes,
        leads=inputs.store.signals.shape[1],
        samples=inputs.store.samples,
        sampling_rate=inputs.store.sampling_rate,
        width=config["model"]["width"],
        iterations=train["iterations"],
        epoch=train["epoch"],
        warm_up=train["warm_up"],
        labelled_batch=half if uses_unlabelled else train["batch"],
        unlabelled_batch=half if uses_unlabelled else 0,
        learning_rate=float(train["learning_rate"]),
        seed=cell["seed"],
        ood_level=cell["ood"],
        variant=cell["variant"],
        lambda_sum=cell["lambda_sum"],
    )


def build(config: dict[str, Any], inputs: Inputs) -> tuple[Training, dict[str, SignalSet]]:
    """The training, ready for its first iteration, and the sets that it will predict at the end."""
    train = config["train"]
    device = devices.prepare(train["device"], train["threads"])
    source = SignalSource(inputs.store, device, resident=devices.fits(device, inputs.store.signals.nbytes))
    sets = {
        name: SignalSet(
            source,
            torch.from_numpy(getattr(inputs.split, name)),
            torch.from_numpy(getattr(inputs.split, f"{name}_label")).to(device),
        )
        for name in ("labelled", "pool", *EVALUATED)
    }
    kind = method_class(config["module"])
    setting = make_setting(config, inputs, kind.uses_unlabelled)
    rng = Generators(setting.seed, device)
    data = MethodData(sets["labelled"], sets["pool"].without_labels(), sets["validation"])
    name, protocol = config["cell"]["method"], config["protocol"]
    hyper = validate(kind.Hyper, config["hyper"], f"params.yaml, methods.{name}")
    switches = validate(kind.Switches, config["switches"], f"protocol {protocol} of {name}")
    torch.manual_seed(derived_seed(setting.seed, "weights"))
    method = kind(Context(setting, hyper, switches, data, rng)).to(device)
    training = Training(
        method, sets["labelled"], sets["pool"], sets["validation"], sets["open_test"], rng, train["amp"]
    )
    return training, {name: sets[name] for name in EVALUATED}


@torch.no_grad()
def predict(method: Method, sets: dict[str, SignalSet], records: NDArray[np.str_]) -> dict[str, NDArray]:
    """The content of predictions.npz: ids, labels, raw head outputs and final log-probabilities of every branch."""
    predicted = {}
    for name, signals in sets.items():
        outputs = method.outputs_on(signals)
        branches = method.predict(outputs)
        assert signals.labels is not None
        predicted[name] = PredictedSet(
            records[signals.rows.numpy()],
            signals.labels.cpu().numpy(),
            {head: stored(values) for head, values in outputs.items()},
            {branch: stored(prediction.log_probs) for branch, prediction in branches.items()},
            {
                branch: stored(prediction.ood_score)
                for branch, prediction in branches.items()
                if prediction.ood_score is not None
            },
        )
    temperatures = {name: value for name, value in method.monitors().items() if name.startswith(TEMPERATURE)}
    return pack(method.reported_branch(), temperatures, predicted)
