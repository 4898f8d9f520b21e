"""In what a study differs from the paper's setting, and what that means: the params against the profile `paper`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.engine.models import ResNet1D, parameter_count
from safeecgmatch.engine.views import BAND_SHARE
from safeecgmatch.files import read_yaml
from safeecgmatch.leads import LEADS
from safeecgmatch.profiles import compose_params
from safeecgmatch.protocols import switches
from safeecgmatch.reporting.names import corpus_size, dataset_name, is_generated, method_name

PAPER = "paper"  # the profile with the paper's setting
SEEN_CLASSES = 3  # in both datasets, under both protocols
POOL = (3, 2)  # kernel and stride of the backbone's maximum
COMPARED = ("data.sampling_rate", "split.", "model.", "train.")
NO_MEANING = ("train.device", "train.threads")  # change bits, not the setting


@dataclass(frozen=True)
class Deviation:
    """One line of the list; `short` says it in few words, `dataset` is empty where it holds for all."""

    setting: str
    ours: str
    paper: str
    why: str
    meaning: str
    short: str
    dataset: str = ""


@cache
def _reasons() -> dict[str, dict[str, str]]:
    return read_yaml(Path(__file__).with_name("deviations.yaml"))


@cache
def paper_params() -> Params:
    return compose_params(PAPER)


def shown(value: Any, key: str) -> str:
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return f"{text} {_reasons().get(key, {}).get('unit', '')}".strip()


@cache
def receptive_field() -> int:
    """In samples, of one entry of the last feature map: kernels and strides along the main path."""
    network = ResNet1D(len(LEADS), SEEN_CLASSES, 1)
    convolutions = [network.stem] + [conv for block in network.blocks for conv in (block.conv1, block.conv2)]
    layers: list[tuple[int, int]] = [(conv.weight.shape[-1], conv.stride[1]) for conv in convolutions]  # type: ignore[index, misc, union-attr]
    layers.insert(1, POOL)
    field, jump = 1, 1
    for kernel, stride in layers:
        field += (kernel - 1) * jump
        jump *= stride
    return field


@cache
def backbone_parameters(width: int) -> int:
    with torch.device("meta"):
        return parameter_count(ResNet1D(len(LEADS), SEEN_CLASSES, width))


def passes(params: Params, records: int) -> float:
    """How often a semi-supervised method sees each of so many records: half of a batch is of the pool."""
    return params.train.iterations * (params.train.batch // 2) / records


def meaning(key: str, ours: Params, paper: Params) -> str:
    dataset = ours.grid.datasets[0]
    if key == "data.sampling_rate":
        rates = (ours.data.sampling_rate, paper.data.sampling_rate)
        seconds = [receptive_field() / rate for rate in rates]
        bands = [f"{BAND_SHARE * rate / 2:g} of {rate / 2:g} Hz" for rate in rates]
        return (
            f"the receptive field is {seconds[0]:.2f} s instead of {seconds[1]:.2f} s; a frequency mask takes "
            f"{bands[0]} instead of {bands[1]}"
        )
    if key == "model.width":
        counts = [backbone_parameters(params.model.width) for params in (ours, paper)]
        return f"{counts[0]:,} instead of {counts[1]:,} parameters per backbone"
    if key == "train.iterations":
        sources = [(params, params.data.source(dataset)) for params in (ours, paper)]
        times = [passes(params, SEEN_CLASSES * source.labels_per_class) for params, source in sources]
        of_pool = [passes(params, source.pool_size) for params, source in sources]
        counts = [params.train.iterations // params.train.epoch for params in (ours, paper)]
        same = ours.train.epoch == paper.train.epoch
        epochs = f"{'the first ' * same}{counts[0]} {'of' if same else 'instead of'} {counts[1]} epochs"
        return (
            f"{epochs}; a labelled record is seen {times[0]:,.0f} times instead of {times[1]:,.0f}, "
            f"the pool {of_pool[0]:.1f} times instead of {of_pool[1]:.1f} ({dataset_name(dataset).name})"
        )
    if key == "split.seed" and ours.split.seed == "run":
        return "every seed has test records of its own, so that a spread over seeds holds that of the split too"
    return ""


def leaves(params: Params) -> dict[Any, Any]:
    """Every value by its path, as `train.epoch`."""
    return pd.json_normalize(params.model_dump()).to_dict("records")[0]


def method_values(params: Params, method: str) -> dict[str, Any]:
    """Hyper-parameters and switches of a method as this study resolves them."""
    section = params.methods.get(method, {"switches": {}})
    own = {key: value for key, value in section.items() if key != "switches"}
    return own | switches(method, params.protocol, section["switches"])


def deviation(key: str, ours: Any, paper: Any, meaning: str = "", where: str = "", dataset: str = "") -> Deviation:
    """`where`: the methods or the dataset concerned; deviations.yaml has name, unit and reason of a key."""
    reason = _reasons().get(key, {})
    name, here = reason.get("name", key), shown(ours, key)
    short = reason.get("short", f"{name} {{}}").format(here) + (f" of {where}" if where and not dataset else "")
    setting = f"{name} ({where})" if where else name
    return Deviation(setting, here, shown(paper, key), reason.get("why", ""), meaning, short, dataset)


def deviations(params: Params) -> list[Deviation]:
    """All of them, under the protocol of `params`; none if the study's numbers may be set beside the paper's."""
    paper = paper_params().model_copy(update={"protocol": params.protocol})
    rows = [row for dataset in params.grid.datasets for row in _of_dataset(params, paper, dataset)]
    ours, theirs = leaves(params), leaves(paper)
    for key, value in ours.items():
        if key.startswith(COMPARED) and key not in NO_MEANING and value != theirs.get(key):
            value = "each run's own" if value == "run" else value
            rows.append(deviation(key, value, theirs.get(key), meaning(key, params, paper)))
    return rows + _of_methods(params, paper)


def _of_dataset(params: Params, paper: Params, dataset: str) -> list[Deviation]:
    here, there = params.data.source(dataset), paper.data.source(dataset)
    found: dict[str, tuple[Any, Any]] = {}
    if is_generated(params, dataset):
        found["source"] = "generated", "real"
    if here.corpus:
        found["corpus"] = ", ".join(here.corpus), "sources not stated"
    for key in ("labels_per_class", "pool_size"):
        if getattr(here, key) != getattr(there, key):
            found[key] = getattr(here, key), getattr(there, key)
    name, sources = dataset_name(dataset).name, corpus_size(here, dataset)
    rows = {key: deviation(key, *values, where=name, dataset=dataset) for key, values in found.items()}
    return [replace(row, short=sources) if key == "corpus" else row for key, row in rows.items()]


def _of_methods(params: Params, paper: Params) -> list[Deviation]:
    """One row per key and pair of values, with all methods that share it."""
    groups: dict[tuple[str, Any, Any], list[str]] = {}
    for method in [*params.grid.methods, PROPOSED]:
        ours, theirs = method_values(params, method), method_values(paper, method)
        for key in ours:
            if ours[key] != theirs.get(key):
                groups.setdefault((key, ours[key], theirs.get(key)), []).append(method_name(method).name)
    return [deviation(*values, where=", ".join(names)) for values, names in groups.items()]


def barriers(rows: list[Deviation], dataset: str) -> list[str]:
    """Why the levels of a dataset may not be set beside the paper's, in few words; gaps and ranks may be, unless the
    data are generated."""
    return [row.short for row in rows if row.dataset in ("", dataset)]


def comparability(params: Params, rows: list[Deviation]) -> str:
    """The first sentence of a report: what may be set beside the paper's numbers."""
    if any(is_generated(params, dataset) for dataset in params.grid.datasets):
        return (
            "The signals are generated. These numbers show that every part of the study works; neither levels, nor "
            "ranks, nor gaps say anything about the paper's claims."
        )
    if rows:
        return (
            "Ranks of methods and gaps between them can be compared with the paper's, levels cannot: the setting "
            f"differs from the paper's in {len(rows)} points, listed under Deviations."
        )
    return "The setting is the paper's; ranks, gaps and levels can be compared."
