"""A finished cell's folder, or a published model's, as a network that answers, with the threshold of its refusal.

A published model has no predictions.npz: those are of single people's records. Its summary.json states the branch and
thresholds at a few shares in their place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from safeecgmatch.data.datasets import find_dataset
from safeecgmatch.data.preparation import STANDARDISED, Preparation
from safeecgmatch.engine.assembly import Inputs, build
from safeecgmatch.engine.fingerprint import code_of
from safeecgmatch.engine.method import Method
from safeecgmatch.engine.signal_store import Entry, SignalStore
from safeecgmatch.engine.signals import SignalSource
from safeecgmatch.engine.split_files import PARTS, Split
from safeecgmatch.errors import UserError
from safeecgmatch.files import digest_of, hash_of, read_json, read_yaml
from safeecgmatch.leads import LEADS, SECONDS
from safeecgmatch.predicting.conforming import Conformed
from safeecgmatch.predictions import acceptance, ood_score, read_arrays, reported_branch

BATCH = 128  # as in training, so that the same records in the same order give the same bytes
CONFIG, WEIGHTS, SUMMARY, PREDICTIONS = "config.yaml", "model.safetensors", "summary.json", "predictions.npz"
CARD, RECORD, DIGEST = "README.md", "run.json", "weights_md5"
OF_CELL = (CONFIG, WEIGHTS, SUMMARY, PREDICTIONS, "history.csv", "trajectory.npz")
OF_MODEL = (CONFIG, WEIGHTS, SUMMARY, CARD)
THRESHOLDS = "thresholds"  # by share, as text; states that a summary is a published model's
NEEDED = ("accept_threshold", "accept_share", "unseen_score", "generated_ecgs", "classes")
NO_DEVICE = "This is research software and no medical device: do not base a diagnosis on it."
GENERATED = "Trained on generated ECGs, not for use on people."
CHANGED = "The code that decides predictions has changed since this cell was trained: its calibration may not hold."
AGAIN = "train the cell again with this version"
# What a config, weights or predictions of another version, or damaged ones, can lead to.
LOADING_FAULTS = (
    AttributeError, BadZipFile, EOFError, KeyError, OSError, RuntimeError, SafetensorError, TypeError, UserError,
    ValueError,
)  # fmt: skip


def find_cell(name: str) -> Path:
    """A cell's folder from its path below runs/ or any other path."""
    for folder in (Path("runs") / name, Path(name)):
        if folder.is_dir():
            return folder
    raise UserError(
        f"There is no finished cell {name}, neither below runs/ nor as a folder: `safeecgmatch cells` lists them."
    )


@dataclass(frozen=True)
class RawAnswers:
    """What the network says about n records; `unseen` is higher for records that belong to no seen class."""

    log_probs: NDArray[np.float32]  # (n, K)
    unseen: NDArray[np.floating]  # (n,)


@dataclass(frozen=True)
class Trained:
    """A network in evaluation mode with all that its answers need; several threads may ask it at once."""

    folder: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    method: Method
    device: torch.device
    branch: str
    share: float
    threshold: float

    @classmethod
    def open(cls, folder: Path, accept: float | None = None) -> Trained:
        """`accept`: another share of seen validation records to accept than the one in summary.json."""
        summary = read_summary(folder / SUMMARY)
        published = THRESHOLDS in summary
        check_files(folder, OF_MODEL if published else OF_CELL)
        share = float(summary["accept_share"] if accept is None else accept)
        if published and f"{share:g}" not in summary[THRESHOLDS]:
            known = ", ".join(summary[THRESHOLDS])
            raise UserError(f"{folder} is a published model, which has thresholds for these shares alone: {known}.")
        stated = (summary if published else read_record(folder)).get(DIGEST)
        if stated not in (None, digest_of(folder / WEIGHTS, "md5")):
            raise UserError(f"{folder / WEIGHTS} has changed since it was written: bring it back, or {AGAIN}.")
        try:
            config = read_yaml(folder / CONFIG)
            if published:
                branch, threshold = summary["branch"], summary[THRESHOLDS][f"{share:g}"]
            else:
                predictions = read_arrays(folder / PREDICTIONS)
                branch, threshold = reported_branch(predictions), acceptance(predictions, share)["accept_threshold"]
            config = {**config, "train": {**config["train"], "device": usable_device(config["train"]["device"])}}
            training, _ = build(config, blank_inputs(config))
            training.method.load_state_dict(load_file(folder / WEIGHTS))
        except LOADING_FAULTS as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise UserError(f"{folder} holds no network that this version can load ({reason}): {AGAIN}.") from error
        return cls(folder, config, summary, training.method.eval(), training.device, branch, share, float(threshold))

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.summary["classes"])

    @property
    def sampling_rate(self) -> int:
        return int(self.config["data"]["sampling_rate"])

    @property
    def preparation(self) -> Preparation:
        """As filter had it for this cell's data."""
        dataset, data = find_dataset(self.config["cell"]["dataset"]), self.config["data"]
        return dataset.preparation(self.sampling_rate, data["preprocessing"])

    @property
    def notice(self) -> str:
        """Belongs in every output."""
        return f"{GENERATED} {NO_DEVICE}" if self.summary["generated_ecgs"] else NO_DEVICE

    @cached_property
    def code_changed(self) -> bool:
        """Whether the cell was trained by other code than that which answers now."""
        now = hash_of([self.config["config_hash"], code_of(self.config["module"]), self.config.get("versions")])
        return bool(self.config.get("fingerprint") != now)  # older versions stored none

    def inputs(self, records: Sequence[Conformed]) -> Iterator[Tensor]:
        """Batches as the network sees them, by the code that feeds a training."""
        source = SignalSource(store_of(records, self.config), self.device)
        return (source.gather(part) for part in torch.arange(len(records)).split(BATCH))

    @torch.no_grad()
    def scores(self, records: Sequence[Conformed]) -> RawAnswers:
        parts = [self.method.outputs(x) for x in self.inputs(records)]
        outputs = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        prediction = self.method.predict(outputs)[self.branch]
        arrays = {f"new.log_probs.{self.branch}": prediction.log_probs.float().cpu().numpy()}
        if prediction.ood_score is not None:
            arrays[f"new.ood_score.{self.branch}"] = prediction.ood_score.float().cpu().numpy()
        return RawAnswers(arrays[f"new.log_probs.{self.branch}"], ood_score(arrays, self.branch, split="new"))


def check_files(folder: Path, wanted: Sequence[str]) -> None:
    """Say at once that a folder is none of ours, or one of another version."""
    present = {file.name for file in folder.iterdir() if not file.name.startswith(".")}
    if missing := [name for name in wanted if name not in present]:
        raise UserError(f"{folder} has no {missing[0]}, so it is no finished cell: name one, or {AGAIN}.")
    if unknown := sorted(present.difference(wanted)):
        raise UserError(f"{folder} holds {unknown[0]}, which this version does not know: {AGAIN}.")


def read_summary(file: Path) -> dict[str, Any]:
    try:
        summary = read_json(file)
    except FileNotFoundError:
        raise UserError(f"{file.parent} has no {file.name}, so it is no finished cell: name one.") from None
    if reason := summary.get("diverged"):
        raise UserError(f"{file.parent} holds no network, because its training diverged ({reason}): take another cell.")
    if missing := [name for name in NEEDED if name not in summary]:
        raise UserError(f"{file} does not state {missing[0]}, which older versions did not store: {AGAIN}.")
    return summary


def read_record(folder: Path) -> dict[str, Any]:
    """The run.json of a cell: below tracking/, or beside a result that waits in scratch/; nothing where it is gone."""
    place = Path("tracking", *folder.parts[1:]) if folder.parts[:1] == ("runs",) else folder.parent
    return read_json(place / RECORD) if (place / RECORD).is_file() else {}


def usable_device(trained_on: str) -> str:
    """The cell's own device; a cell that was trained on a GPU also answers where there is none."""
    return "cpu" if trained_on == "cpu" else "auto"


def store_of(records: Sequence[Conformed], config: dict[str, Any]) -> SignalStore:
    """Rows in memory as the training sees rows on disk."""
    rows, data = np.stack([record.row for record in records]), config["data"]
    form = {
        "dataset": config["cell"]["dataset"],
        "preprocessing": data["preprocessing"],
        "sampling_rate": data["sampling_rate"],
        "samples": rows.shape[2],
        "standardise": data["preprocessing"] in STANDARDISED,
    }
    entries = [Entry("", "", "", "", "", record.length) for record in records]
    return SignalStore(Path(), rows, entries, form)  # type: ignore[arg-type]


def blank_inputs(config: dict[str, Any]) -> Inputs:
    """One blank record per class in every part: the engine builds no method without data."""
    data, samples = config["data"], SECONDS * config["data"]["sampling_rate"]
    blank = Conformed(np.zeros((len(LEADS), samples), dtype=np.int16), samples)
    rows = np.arange(len(data["seen"]))
    parts = {name: rows for part in PARTS for name in (part, f"{part}_label")}
    split = Split(seen=tuple(data["seen"]), unseen=tuple(data["unseen"]), summary={}, **parts)
    return Inputs(store_of([blank] * len(rows), config), split)
