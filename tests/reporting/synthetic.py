"""Made-up finished cells on disk, for the tests of the reports and for their benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from safeecgmatch import config
from safeecgmatch.cells import Cell, cells
from safeecgmatch.config import Params

BASELINES = [
    "supervised", "fixmatch", "iomatch", "openmatch", "scomatch", "safestudent",
    "ecgmatch", "adello", "tstfc", "complematch", "calimatch",
]  # fmt: skip
BRANCHES = {"safeecgmatch": ["time", "freq", "fused"], "tstfc": ["time", "freq", "mean"]}
BRANCHES["complematch"] = BRANCHES["tstfc"]
OWN_SCORE = {"openmatch", "calimatch", "safeecgmatch"}
CLASSES = 3


EVERYTHING: dict[str, Any] = {  # what make_params leaves out
    "readings": ["learned_t"],
    "variants": {"datasets": ["ptbxl"], "names": ["learned_no_freq_cal", "two_time", "learned_two_time", "coupled"]},
    "arms": {
        "seen_pool": {"datasets": ["ptbxl", "cinc21"], "methods": ["fixmatch", "calimatch"]},
        "val150": {"datasets": ["ptbxl"], "methods": ["fixmatch", "calimatch", "safeecgmatch"]},
    },
}


def make_params(**changes: Any) -> Params:
    """Params of demo size; built from its checked parts, so that a test may name a method that does not exist."""
    source = {"source": "phantom", "path": None, "labels_per_class": 10, "pool_size": 600}
    values: dict[str, Any] = {
        "profile": "demo",
        "protocol": "paper",
        "lambda_sum": 1.0,
        "grid": {"datasets": ["ptbxl", "cinc21"], "methods": BASELINES, "ood_levels": [30, 60], "seeds": [1, 2]},
        "ablation": {
            "datasets": ["ptbxl", "cinc21"], "ood_levels": [60], "variants": ["no_freq_cal", "no_cal"],
            "lambda_sum": 1.0,
        },
        "sensitivity": {"datasets": ["ptbxl"], "ood_levels": [60], "lambda_sums": [0.3333333333333333, 3.0]},
        "readings": [],
        "variants": {"datasets": [], "ood_levels": [60], "names": []},
        "arms": {name: {"datasets": [], "methods": []} for name in ("seen_pool", "val150")},
        "data": {
            "sampling_rate": 100, "ptbxl": source, "cinc21": source, "phantom": {"records": 1200, "seed": 7},
            "switches": {},
        },
        "split": {"strategy": "random", "seed": 42},
        "model": {"width": 8},
        "train": {
            "iterations": 150, "epoch": 50, "warm_up": 60, "batch": 32, "learning_rate": 0.01,
            "device": "cpu", "amp": "off", "threads": 1,
        },
        "checkpoint_every": 50,
        "methods": {},
    }  # fmt: skip
    for key, value in changes.items():
        values[key] = {**values[key], **value} if isinstance(value, dict) else value
    sections: dict[str, type[config.Strict]] = {
        "grid": config.Grid, "ablation": config.Ablation, "sensitivity": config.Sensitivity, "data": config.Data,
        "split": config.Split, "model": config.Model, "train": config.Train, "variants": config.Variants,
        "arms": config.Arms,
    }  # fmt: skip
    checked: dict[str, Any] = {key: model.model_validate(values[key]) for key, model in sections.items()}
    return Params.model_construct(**{**values, **checked})


def paper_params(**changes: Any) -> Params:
    """Params of the paper's size on real data: where the comparison with the paper is meaningful."""
    real = {"source": "physionet", "path": None}
    data = {
        "sampling_rate": 500,
        "ptbxl": {**real, "labels_per_class": 50, "pool_size": 14850},
        "cinc21": {**real, "labels_per_class": 104, "pool_size": 30826},
    }
    return make_params(
        **{
            "profile": "paper",
            "grid": {"seeds": [1, 2, 3]},
            "data": data,
            "model": {"width": 64},
            "train": {"iterations": 50000, "epoch": 1000, "warm_up": 500, "batch": 64, "learning_rate": 0.001},
            **changes,
        }
    )


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))).astype(np.float32)


def make_predictions(cell: Cell, records: int) -> dict[str, np.ndarray]:
    """Noisy logits; Supervised ignores the OOD level, as its real runs do where the labelled sets are equal."""
    method = sum(map(ord, cell.method + cell.variant + cell.arm))
    level = 0 if cell.method == "supervised" else cell.ood
    generator = np.random.default_rng([method, level, cell.seed, len(cell.dataset), int(3 * (cell.lambda_sum or 0))])
    branches = BRANCHES.get(cell.method, ["main"])
    skill, scale = 1.0 + (method % 7) / 6, 1.0 + (method % 5) / 2
    predictions: dict[str, np.ndarray] = {"branch": np.array(branches[-1])}
    for split, unseen in (("validation", 0), ("open_test", records // 3)):
        labels = np.append(generator.integers(0, CLASSES, records), np.full(unseen, CLASSES))
        predictions[f"{split}.record"] = np.array([f"{split}{i}" for i in range(records + unseen)])
        predictions[f"{split}.label"] = labels
        for branch in branches:
            logits = generator.normal(0, 1, (labels.size, CLASSES))
            seen = np.flatnonzero(labels < CLASSES)
            logits[seen, labels[seen]] += skill
            predictions[f"{split}.log_probs.{branch}"] = log_softmax(scale * logits)
            if cell.method in OWN_SCORE:
                score = generator.normal(labels >= CLASSES, 1.0)
                predictions[f"{split}.ood_score.{branch}"] = (1 / (1 + np.exp(-score))).astype(np.float32)
    opened = [key for key in predictions if key.startswith("open_test.")]
    return predictions | {key.removeprefix("open_"): predictions[key][:records] for key in opened}


def make_trajectory(predictions: dict[str, np.ndarray], evaluations: int, every: int) -> dict[str, np.ndarray]:
    """Noisy log-probabilities that grow into the final ones; unseen scores that have them from the start."""
    generator = np.random.default_rng(evaluations)
    branch = np.full(evaluations, str(predictions["branch"]))
    found = {"iteration": every * np.arange(1, evaluations + 1), "branch": branch, "competes": branch == branch}
    for key, values in predictions.items():
        if key.startswith(("validation.", "open_test.")) and key.split(".")[1] in ("log_probs", "ood_score"):
            shares = np.arange(1, evaluations if ".log_probs." in key else 1) / evaluations
            early = [log_softmax(values * share + generator.normal(0, 1 - share, values.shape)) for share in shares]
            found[key] = np.stack([*early, values] if early else [values] * evaluations)
    return found


def make_history(cell: Cell, evaluations: int, every: int) -> pd.DataFrame:
    generator = np.random.default_rng([cell.seed, cell.ood])
    rise = 1 - np.exp(-np.arange(1, evaluations + 1) / evaluations * 3)
    history = pd.DataFrame({"iteration": every * np.arange(1, evaluations + 1)})
    history["val_accuracy"] = 0.4 + 0.4 * rise + generator.normal(0, 0.01, evaluations)
    history["loss.total"] = 1 / (1 + rise)
    labels = cell.method != "supervised"
    history["mask_rate"] = 0.7 * rise if labels else np.nan
    history["pseudo_accuracy"] = 0.6 + 0.3 * rise if labels else np.nan
    history["pseudo_ood_share"] = cell.ood / 100 * (1 - 0.5 * rise) if labels else np.nan
    if cell.method in ("calimatch", "safeecgmatch"):
        for branch in ("time", "freq") if cell.method == "safeecgmatch" else ("main",):
            history[f"temperature.class.{branch}"] = 1.5 + rise
            history[f"temperature.ova.{branch}"] = 1.5 - 0.5 * rise
    if cell.method == "safeecgmatch":
        history["mask_rate.freq"] = 0.2 * rise
    if cell.method == "ecgmatch":
        history["teacher_accuracy"] = 0.5 + 0.2 * rise
    return history


def write_cell(cell: Cell, params: Params, root: Path, records: int = 120, **summary: Any) -> None:
    """A finished cell; `diverged="sentence"` leaves out its predictions, as a training that diverged does."""
    folder = root / "runs" / cell.path
    folder.mkdir(parents=True)
    evaluations = params.train.iterations // params.train.epoch
    if not summary.get("diverged"):
        predictions = make_predictions(cell, records)
        np.savez(folder / "predictions.npz", **predictions)  # type: ignore[arg-type]
        trajectory = make_trajectory(predictions, evaluations, params.train.epoch)
        np.savez(folder / "trajectory.npz", **trajectory)  # type: ignore[arg-type]
    make_history(cell, evaluations, params.train.epoch).to_csv(folder / "history.csv", index=False)
    switches = {"selection_includes_pretrain": params.protocol == "release"} if cell.method == "safestudent" else {}
    content = {"cell": cell.describe(), "protocol": params.protocol, "switches": switches, "config_hash": "0" * 16}
    (folder / "config.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    facts = {
        "best_iteration": params.train.iterations, "best_val_accuracy": 0.8, "parameters": 60000, "labelled": 30,
        "pool": 600, "validation": records, "test": records, "open_test": records,
        "iterations": params.train.iterations, "classes": ["NORM", "MI", "CD"], "no_competitor": False,
        "diverged": None, "warnings": [],
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps({**facts, **summary}), encoding="utf-8")
    run = {"run_id": f"run{cell.seed}", "commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False}
    record = root / "tracking" / cell.path / "run.json"
    record.parent.mkdir(parents=True)
    machine = {"device": "cpu", "threads": 1, "processor": "a test", "versions": {"python": "3.11", "torch": "2.13.0"}}
    record.write_text(json.dumps({**run, **machine, "wall_seconds": 12.5, "cpu_seconds": 12.0}), encoding="utf-8")


def write_study(params: Params, root: Path, records: int = 120) -> list[Cell]:
    """Every cell that `params` asks for, written below `root`."""
    wanted = cells(params)
    for cell in wanted:
        write_cell(cell, params, root, records)
    return wanted
