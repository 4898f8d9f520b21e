"""In what a study differs from the paper's setting, and what that means, from the params of both."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.engine.models import ResNet1D, parameter_count
from safeecgmatch.engine.views import BAND_SHARE
from safeecgmatch.files import read_yaml
from safeecgmatch.leads import LEADS
from safeecgmatch.protocols import switches
from safeecgmatch.reporting.names import dataset_name, method_name
from safeecgmatch.reporting.provenance import is_generated

SEEN_CLASSES = 3  # in both datasets, under both protocols
POOL = (3, 2)  # kernel and stride of the backbone's maximum
COMPARED = ("data.sampling_rate", "split.", "model.", "train.")
NO_MEANING = ("train.device", "train.threads")  # change bits, not the setting


@dataclass(frozen=True)
class Deviation:
    setting: str
    ours: str
    paper: str
    why: str
    meaning: str


@cache
def _reasons() -> dict[str, dict[str, str]]:
    return read_yaml(Path(__file__).with_name("deviations.yaml"))


def shown(value: Any, key: str) -> str:
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return f"{text} {_reasons().get(key, {}).get('unit', '')}".strip()


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


def backbone_parameters(width: int) -> int:
    with torch.device("meta"):
        return parameter_count(ResNet1D(len(LEADS), SEEN_CLASSES, width))


def repetitions(params: Params, dataset: str) -> float:
    """How often a semi-supervised method sees a labelled record."""
    labelled = SEEN_CLASSES * params.data.source(dataset).labels_per_class
    return params.train.iterations * (params.train.batch // 2) / labelled


def pool_passes(params: Params, dataset: str) -> float:
    return params.train.iterations * (params.train.batch // 2) / params.data.source(dataset).pool_size


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
        times = [repetitions(params, dataset) for params in (ours, paper)]
        passes = [pool_passes(params, dataset) for params in (ours, paper)]
        counts = [params.train.iterations // params.train.epoch for params in (ours, paper)]
        same = ours.train.epoch == paper.train.epoch
        epochs = f"{'the first ' * same}{counts[0]} {'of' if same else 'instead of'} {counts[1]} epochs"
        return (
            f"{epochs}; a labelled record is seen {times[0]:,.0f} times instead of {times[1]:,.0f}, "
            f"the pool {passes[0]:.1f} times instead of {passes[1]:.1f} ({dataset_name(dataset).name})"
        )
    if key == "split.seed" and ours.split.seed == "run":
        return "every seed has test records of its own, so that a spread over seeds holds that of the split too"
    return ""


def leaves(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in content.items():
        found |= leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def method_values(params: Params, method: str) -> dict[str, Any]:
    """Hyper-parameters and switches of a method as this study resolves them."""
    section = params.methods.get(method, {"switches": {}})
    own = {key: value for key, value in section.items() if key != "switches"}
    return own | switches(method, params.protocol, section["switches"])


def _row(key: str, ours: Any, paper: Any, params: Params, original: Params, suffix: str = "") -> Deviation:
    reason = _reasons().get(key, {})
    name = reason.get("name", key) + suffix
    texts = shown(ours, key), shown(paper, key)
    return Deviation(name, *texts, reason.get("why", ""), meaning(key, params, original))


def deviations(params: Params, paper: Params) -> list[Deviation]:
    """`paper` is the profile of that name, under the protocol of `params`."""
    paper = paper.model_copy(update={"protocol": params.protocol})
    rows = []
    for dataset in params.grid.datasets:
        here, there = params.data.source(dataset), paper.data.source(dataset)
        suffix = f" ({dataset_name(dataset).name})"
        if here.source == "phantom":
            rows.append(_row("source", "generated", "real", params, paper, suffix))
        if here.corpus:
            rows.append(_row("corpus", ", ".join(here.corpus), "sources not stated", params, paper, suffix))
        for key in ("labels_per_class", "pool_size"):
            if getattr(here, key) != getattr(there, key):
                rows.append(_row(key, getattr(here, key), getattr(there, key), params, paper, suffix))
    ours, theirs = leaves(params.model_dump()), leaves(paper.model_dump())
    for key, value in ours.items():
        if key.startswith(COMPARED) and key not in NO_MEANING and value != theirs.get(key):
            value = "each run's own" if value == "run" else value
            rows.append(_row(key, value, theirs.get(key), params, paper))
    return rows + _method_deviations(params, paper)


def _method_deviations(params: Params, paper: Params) -> list[Deviation]:
    """One row per key and pair of values, with all methods that share it."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for method in [*params.grid.methods, PROPOSED]:
        ours, theirs = method_values(params, method), method_values(paper, method)
        for key in ours:
            if ours[key] != theirs.get(key):
                group = (key, shown(ours[key], key), shown(theirs.get(key), key))
                groups.setdefault(group, []).append(method_name(method).name)
    return [
        Deviation(
            f"{_reasons().get(key, {}).get('name', key)} ({', '.join(names)})",
            ours,
            theirs,
            _reasons().get(key, {}).get("why", ""),
            "",
        )
        for (key, ours, theirs), names in groups.items()
    ]


def comparability(params: Params, rows: list[Deviation]) -> str:
    """The first sentence of a report: what may be set beside the paper's numbers."""
    if is_generated(params):
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
