"""The files of runs/<cell>: the same bytes for the same params on the same machine."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.torch import save_file

from safeecgmatch.engine.arrays import write_arrays
from safeecgmatch.engine.assembly import EVALUATED, Inputs, predict
from safeecgmatch.engine.loop import Row, Training
from safeecgmatch.engine.models import parameter_count
from safeecgmatch.engine.monitor import warnings_of
from safeecgmatch.engine.signals import SignalSet
from safeecgmatch.files import atomic_path, read_json, write_json, write_text
from safeecgmatch.predictions import acceptance

FIRST_COLUMNS = ("iteration", "val_accuracy", "competes", "mask_rate", "pseudo_accuracy", "pseudo_ood_share")


def summarise(training: Training, inputs: Inputs, diverged: str) -> dict[str, Any]:
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
        "diverged": diverged or None,
        "warnings": warnings_of(training.history, chosen.iteration),
    }


def warnings_in(folder: Path) -> list[str]:
    """Of a finished cell: why it diverged, and what a reader of its numbers should know."""
    summary = read_json(folder / "summary.json")
    return [*([summary["diverged"]] if summary["diverged"] else []), *summary["warnings"]]


def history_csv(history: list[Row]) -> str:
    names = {name for row in history for name in row}
    columns = [name for name in FIRST_COLUMNS if name in names] + sorted(names.difference(FIRST_COLUMNS))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(history)
    return text.getvalue()


def write_outputs(
    folder: Path,
    training: Training,
    sets: dict[str, SignalSet],
    config: dict[str, Any],
    inputs: Inputs,
    generated: bool,
    diverged: str = "",
) -> dict[str, np.ndarray] | None:
    """All files of runs/<cell>, at once or not at all; returns the predictions, which a diverged cell has none of.

    `generated`: its records are a phantom's, no person's.
    """
    summary = summarise(training, inputs, diverged) | {"generated_ecgs": generated}
    weights = training.chosen().weights
    with atomic_path(folder) as partial:
        partial.mkdir()
        write_text(partial / "history.csv", history_csv(training.history))
        write_text(partial / "config.yaml", yaml.safe_dump(config, sort_keys=True))
        if diverged:
            write_json(partial / "summary.json", summary)
            return None
        training.method.load_state_dict(weights)
        predictions = predict(training.method, sets, inputs.store.records)
        write_json(partial / "summary.json", summary | acceptance(predictions))
        write_arrays(partial / "predictions.npz", predictions)
        write_arrays(partial / "trajectory.npz", training.trajectory.arrays())
        save_file({name: value.cpu().contiguous() for name, value in weights.items()}, partial / "model.safetensors")
    return predictions
