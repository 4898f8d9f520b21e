"""What is known about a run besides its results: the content of tracking/<cell>/run.json."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safeecgmatch.cells import ROLES

RECORD_FILE = "run.json"
PACKAGES = ("dvc", "mlflow", "numpy", "safeecgmatch", "torch")
# What says nothing about a run's code: DVC rewrites the first two; params.yaml is a profile's, and each cell's share of
# it is in its config.yaml.
NOT_CODE = (":(exclude)dvc.lock", ":(exclude)reports", ":(exclude)params.yaml")
LONGEST_KEY = 250
LONGEST_VALUE = 6000  # of a param; MLflow refuses longer ones
CUT_MARK = " ... (cut)"

Json = dict[str, Any]


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def milliseconds(moment: str) -> int:
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def experiment_name(profile: str, protocol: str) -> str:
    return f"safeecgmatch-{profile}-{protocol}"


def run_record(
    config: Mapping[str, Any],
    *,
    profile: str,
    path: str,
    stage: str,
    code: Mapping[str, str],
    device: str,
    uid: str,
    origin: tuple[str, bool],
) -> Json:
    """The record of a run that starts now. `config` is the cell's resolved config, `origin` a Git state.

    The uid is ours, not MLflow's: a run that was created while the answer got lost is found again by it.
    """
    commit, dirty = origin
    return {
        "uid": uid,
        "cell": dict(config["cell"]),
        "path": path,
        "experiment": experiment_name(profile, config["protocol"]),
        "profile": profile,
        "protocol": config["protocol"],
        "config_hash": config["config_hash"],
        "fingerprint": config["fingerprint"],
        "code": dict(code),
        "data_hash": config["data"]["hash"],
        "commit": commit,
        "dirty": dirty,
        "dvc_stage": stage,
        "dvc_exp_name": os.environ.get("DVC_EXP_NAME", ""),
        "dvc_exp_baseline_rev": os.environ.get("DVC_EXP_BASELINE_REV", ""),
        "versions": versions(),
        "processor": processor(),
        "device": device,
        "threads": config["train"]["threads"],
        "started": now(),
    }


@dataclass(frozen=True)
class CellFiles:
    """Where a cell's files are at a moment."""

    record: Path
    folder: Path  # with config.yaml and history.csv
    finished: bool  # the folder is that of runs/, and has all files


@dataclass(frozen=True)
class Cost:
    """Seconds spent on a cell, over all its processes: by the clock, and on the processor."""

    wall: float = 0.0
    cpu: float = 0.0


def finished_record(
    record: Mapping[str, Any], metrics: Mapping[str, Any], cost: Cost, iterations: int, weights_md5: str | None
) -> Json:
    """The record of a run that ends now."""
    return {
        **record,
        "finished": now(),
        "wall_seconds": cost.wall,
        "cpu_seconds": cost.cpu,
        "iterations_per_second": iterations / cost.wall,
        "metrics": numbers(metrics),
        "weights_md5": weights_md5,
    }


@cache
def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}}


@cache
def processor() -> str:
    """The processor's name where Linux tells it, else its architecture."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def git_state(folder: Path) -> tuple[str, bool]:
    """The commit ('' outside a repository) and whether tracked code differs from it."""

    def git(*arguments: str) -> str:
        try:
            done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *NOT_CODE)
    return commit, bool(commit and changed)


def tags(record: Mapping[str, Any]) -> dict[str, str]:
    """The tags of a run: everything one would search or group by."""
    hashes = ("config_hash", "data_hash", "fingerprint")
    names = (*hashes, "dvc_stage", "dvc_exp_name", "dvc_exp_baseline_rev", "profile", "protocol", "device")
    return {
        **{key: "" if value is None else str(value) for key, value in record["cell"].items()},
        **{name: record[name] for name in names},
        "role": ROLES[record["dvc_stage"].partition("@")[0]],
        "cell": record["path"],
        "cell_uid": record["uid"],
        # MLflow's own names: its UI shows them as the run's source.
        "mlflow.source.name": "stages/train.py",
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": record["commit"],
        "mlflow.source.git.dirty": str(record["dirty"]).lower(),
    }


def run_name(record: Mapping[str, Any]) -> str:
    """The cell's path; in a DVC experiment with its name, so that no two runs of a sweep are called alike."""
    return " ".join(filter(None, (record["path"], record["dvc_exp_name"])))


def params(config: Mapping[str, Any], profile: str) -> dict[str, str]:
    """The params of a run: the resolved config without its hashes, by which nobody plots; they are tags."""
    data = {key: value for key, value in config["data"].items() if key != "hash"}
    kept = {key: value for key, value in config.items() if key not in ("config_hash", "fingerprint")}
    return flat(kept | {"data": data, "profile": profile})


def metric_name(column: str) -> str:
    """`val_accuracy` of history.csv -> `val/accuracy`: MLflow draws the metrics before a slash as one group."""
    group, separator, rest = column.replace("_", ".", 1).partition(".")
    if separator and group in ("loss", "temperature", "val", "pseudo"):
        return f"{group}/{rest}"
    judged = column.endswith("_accuracy") or column in ("competes", "warnings")
    return f"{'val' if judged else 'pseudo'}/{column}"


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """`{"train": {"batch": 32}}` -> `{"train.batch": "32"}`, keys and values cut to what MLflow takes."""
    params: dict[str, str] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            params |= flat(value, f"{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            params[name[:LONGEST_KEY]] = cut(text)
    return params


def cut(text: str, longest: int = LONGEST_VALUE) -> str:
    return text if len(text) <= longest else text[: longest - len(CUT_MARK)] + CUT_MARK


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are defined: MLflow has no use for an absent or infinite value."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if value is not None and value != "" and math.isfinite(float(value))
    }
