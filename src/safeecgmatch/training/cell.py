"""One cell from params to files: resolve its config, build it, train it, write its deterministic outputs."""

from __future__ import annotations

import csv
import io
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.torch import save_file

from safeecgmatch.config import Cell, Params, hash_of, switches, validate
from safeecgmatch.data.splits import Split, load_split
from safeecgmatch.data.store import SignalStore
from safeecgmatch.errors import UserError
from safeecgmatch.files import atomic_path, sha256_of, write_json, write_text
from safeecgmatch.methods.base import Method, Setting, method_class
from safeecgmatch.models import parameter_count
from safeecgmatch.training import device as devices
from safeecgmatch.training.checkpoint import Checkpoint
from safeecgmatch.training.generators import Generators, derived_seed
from safeecgmatch.training.loop import Row, Training
from safeecgmatch.training.signals import MethodData, SignalSet, SignalSource

EVALUATED = ("validation", "test", "open_test")
FIRST_COLUMNS = ("iteration", "val_accuracy", "competes", "mask_rate", "pseudo_accuracy", "pseudo_ood_share")


@dataclass(frozen=True)
class Inputs:
    """The filtered signals and the split of one cell."""

    store: SignalStore
    split: Split
    data_hash: str

    @classmethod
    def open(cls, cell: Cell, data: Path) -> Inputs:
        filtered, split = data / "filtered" / cell.dataset, data / "splits" / cell.dataset / f"{cell.ood}/{cell.seed}"
        loaded = load_split(split)
        store = SignalStore.open(filtered)
        digests = [sha256_of(filtered / "store.json"), sha256_of(filtered / "records.csv")]
        return cls(store, loaded, hash_of([*digests, sha256_of(split / "split.npz")]))


def resolve(params: Params, cell: Cell, inputs: Inputs) -> dict[str, Any]:
    """Everything that decides this cell's result, as plain values, with the hash of all of it."""
    section = params.methods[cell.method]
    where = f"params.yaml, methods.{cell.method}"
    if not isinstance(section.get("switches"), dict):
        raise UserError(f"{where}: key 'switches' is missing or not a mapping; write `switches: {{}}`.")
    values = switches(cell.method, params.protocol, section["switches"])
    module = values.pop("module", cell.method)
    method = method_class(module)
    config = {
        "cell": cell.describe(),
        "protocol": params.protocol,
        "module": module,
        "model": params.model.model_dump(),
        "train": params.train.model_dump(),
        "hyper": validate(method.Hyper, section, where).model_dump(exclude={"switches"}),
        "switches": validate(method.Switches, values, f"protocol {params.protocol} of {cell.method}").model_dump(),
        "data": {
            "hash": inputs.data_hash,
            "sampling_rate": inputs.store.sampling_rate,
            "preprocessing": inputs.store.preprocessing,
            "seen": list(inputs.split.seen),
            "unseen": list(inputs.split.unseen),
        },
    }
    return {**config, "config_hash": hash_of(config)}


def code_hash() -> str:
    """The code that this process imported: a checkpoint of other code must not be continued."""
    modules = (module for name, module in sorted(sys.modules.items()) if name.startswith("safeecgmatch."))
    sources = [Path(module.__file__) for module in modules if module.__file__]
    return hash_of([sha256_of(source) for source in sources if "tracking" not in source.parts])


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
        evaluate_every=train["evaluate_every"],
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
    hyper = kind.Hyper(**config["hyper"], switches={})
    torch.manual_seed(derived_seed(setting.seed, "weights"))
    method = kind(setting, hyper, kind.Switches(**config["switches"]), data, rng).to(device)
    training = Training(method, sets["labelled"], sets["pool"], sets["validation"], rng, train["amp"])
    return training, {name: sets[name] for name in EVALUATED}


@dataclass
class Session:
    """One process's share of a cell: from a checkpoint, if there is one, to the end or to a stop signal."""

    training: Training
    checkpoint: Checkpoint
    every: int
    extra: dict[str, Any]  # what else the checkpoint carries: the run's uid and the seconds spent
    stop_requested: Callable[[], bool]
    progress: Callable[[Training], None]
    on_evaluation: Callable[[Row], None]

    def restore(self) -> str:
        """Continue from the checkpoint where there is a good one; returns a warning, or nothing."""
        state, warning = self.checkpoint.load()
        if state is not None:
            self.training.load(state["training"])
            self.extra |= state["extra"]
        return warning

    def run(self) -> None:
        self.started = time.monotonic()
        self.training.run(self._after_iteration, self.on_evaluation)

    def _after_iteration(self, training: Training) -> None:
        self.progress(training)
        stopping = self.stop_requested()
        if stopping or (training.n % self.every == 0 and not training.finished):
            self.save()
        if stopping:
            raise Stopped(training.n)

    def save(self) -> None:
        """Never over a good checkpoint with one whose losses are no longer finite."""
        self.training.check_divergence()
        extra = {**self.extra, "seconds": self.seconds()}
        self.checkpoint.save({"training": self.training.state(), "extra": extra})

    def seconds(self) -> float:
        """Wall time of this cell so far, over all its processes."""
        return self.extra["seconds"] + time.monotonic() - self.started


class Stopped(Exception):
    """A stop signal came; the checkpoint is written."""

    def __init__(self, iteration: int) -> None:
        super().__init__(f"stopped after iteration {iteration}; run the same command again to go on")


@torch.no_grad()
def predict(method: Method, sets: dict[str, SignalSet], records: np.ndarray) -> dict[str, np.ndarray]:
    """The content of predictions.npz: ids, labels, raw head outputs and final log-probabilities of every branch."""
    arrays: dict[str, np.ndarray] = {"branch": np.array(method.reported_branch())}
    for name, monitored in method.monitors().items():
        if name.startswith("temperature."):
            arrays[name] = np.array(monitored)
    for split, signals in sets.items():
        outputs = method.outputs_on(signals)
        assert signals.labels is not None
        arrays[f"{split}.record"] = records[signals.rows.numpy()]
        arrays[f"{split}.label"] = signals.labels.cpu().numpy()
        for head, values in outputs.items():
            arrays[f"{split}.{head}"] = values.float().cpu().numpy()
        for branch, prediction in method.predict(outputs).items():
            arrays[f"{split}.log_probs.{branch}"] = prediction.log_probs.float().cpu().numpy()
            if prediction.ood_score is not None:
                arrays[f"{split}.ood_score.{branch}"] = prediction.ood_score.float().cpu().numpy()
    return arrays


def summarise(training: Training, inputs: Inputs) -> dict[str, Any]:
    chosen = training.chosen()
    sizes = {name: len(getattr(inputs.split, name)) for name in ("labelled", "pool", *EVALUATED)}
    return {
        "best_iteration": chosen.iteration,
        "best_val_accuracy": None if math.isnan(chosen.accuracy) else chosen.accuracy,
        "no_competitor": training.best is None,
        "iterations": training.n,
        "parameters": parameter_count(training.method),
        "num_classes": inputs.split.num_classes,
        "classes": list(inputs.split.seen),
        "labelled_batch": training.setting.labelled_batch,
        "unlabelled_batch": training.setting.unlabelled_batch,
        **sizes,
    }


def history_csv(history: list[Row]) -> str:
    names = {name for row in history for name in row}
    columns = [name for name in FIRST_COLUMNS if name in names] + sorted(names.difference(FIRST_COLUMNS))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(history)
    return text.getvalue()


def write_outputs(
    folder: Path, training: Training, sets: dict[str, SignalSet], config: dict[str, Any], inputs: Inputs
) -> dict[str, np.ndarray]:
    """All files of runs/<cell>, at once or not at all; returns the predictions."""
    summary = summarise(training, inputs)
    weights = training.chosen().weights
    training.method.load_state_dict(weights)
    predictions = predict(training.method, sets, inputs.store.records)
    with atomic_path(folder) as partial:
        partial.mkdir()
        np.savez(partial / "predictions.npz", **predictions)  # type: ignore[arg-type]
        write_text(partial / "history.csv", history_csv(training.history))
        write_text(partial / "config.yaml", yaml.safe_dump(config, sort_keys=True))
        write_json(partial / "summary.json", summary)
        save_file({name: value.cpu().contiguous() for name, value in weights.items()}, partial / "model.safetensors")
    return predictions
