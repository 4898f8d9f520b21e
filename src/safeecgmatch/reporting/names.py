"""How methods, datasets and metrics are printed; the facts are in names.yaml."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from safeecgmatch.config import Params, Source
from safeecgmatch.errors import UserError

FILE = Path(__file__).with_name("names.yaml")
SHOWN = "src/safeecgmatch/reporting/names.yaml"


@dataclass(frozen=True)
class Name:
    """A display name with its optional venue, citation key and kind of unseen-class score."""

    name: str
    venue: str = ""
    cite: str = ""
    score: str = ""


@cache
def _names() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


def _methods() -> dict[str, dict[str, str]]:
    return _names()["methods"] | (_names()["further_methods"] or {})


def must_be_named(method: str) -> None:
    if method not in _methods():
        raise UserError(f"{SHOWN} has no name for the method '{method}'; add it under further_methods.")


def method_name(method: str) -> Name:
    return Name(**_methods().get(method, {"name": method}))


def dataset_name(dataset: str) -> Name:
    return Name(**_names()["datasets"].get(dataset, {"name": dataset}))


def setting_name(dataset: str, ood: int) -> str:
    return f"{dataset_name(dataset).name} {ood} %"


def is_generated(params: Params, dataset: str) -> bool:
    return params.data.source(dataset).source == "phantom"


def data_name(params: Params, dataset: str) -> Name:
    """The dataset where its records are real, with the corpus where they are a part of it; what was generated in its
    layout is named as that, and not cited."""
    real, source = dataset_name(dataset), params.data.source(dataset)
    if is_generated(params, dataset):
        return Name(f"Generated ({real.name})")
    return replace(real, name=f"{real.name} ({len(source.corpus)} sources)") if source.corpus else real


def corpus_size(source: Source, dataset: str) -> str:
    return f"{len(source.corpus)} of {len(source_names(dataset))} sources"


def source_names(dataset: str) -> dict[str, str]:
    """How the sources of a dataset are printed, by their folders; empty where it has one."""
    return _names()["sources"].get(dataset, {})


def is_paper_variant(variant: str) -> bool:
    return variant in _names()["paper_variants"]


def variant_name(variant: str) -> str:
    return _names()["variants"].get(variant, variant)


def arm_name(arm: str) -> str:
    """Empty for what is no arm."""
    return _names()["arms"].get(arm, "")


def branch_name(branch: str) -> str:
    return _names()["branches"].get(branch, branch)


def _metric(metric: str) -> dict[str, Any]:
    if metric not in _names()["metrics"]:
        raise UserError(f"{SHOWN} has no metric '{metric}'; add its name there, and which values are best.")
    return _names()["metrics"][metric]


def metric_name(metric: str) -> str:
    return _metric(metric)["name"]


def is_ranked(metric: str) -> bool:
    return "best" in _metric(metric)


def higher_is_better(metric: str) -> bool:
    return _metric(metric)["best"] == "high"


def direction(metric: str) -> int:
    """1 where more is better, -1 where less is."""
    return 1 if higher_is_better(metric) else -1


def bounds(metric: str) -> tuple[float, float]:
    """Between which its values lie."""
    low, high = _metric(metric).get("bounds", (0, 1))
    return low, high


def in_table_order(methods: list[str]) -> list[str]:
    """The methods in the order of the paper's Table 3; unlisted ones just before the paper's own, which is last."""
    listed = list(_names()["methods"])
    return sorted(methods, key=lambda method: listed.index(method) if method in listed else len(listed) - 1.5)


def summary_methods(methods: list[str]) -> list[str]:
    """Those of Table 1 that are among `methods`, in Table 1's order."""
    return [method for method in _names()["summary"] if method in methods]
