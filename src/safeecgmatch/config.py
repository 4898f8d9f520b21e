"""params.yaml and protocols.yaml as typed, frozen objects; a mistake in either is one sentence that names it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from safeecgmatch.data.classes import DATASETS
from safeecgmatch.errors import UserError

SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one where PyYAML was built with it: 10 x faster

PARAMS_FILE = Path("params.yaml")
PROTOCOLS_FILE = Path(__file__).with_name("protocols.yaml")
PROPOSED = "safeecgmatch"  # the paper's own method; its cells have their own stages

Dataset = Literal["ptbxl", "cinc21"]
Protocol = Literal["paper", "release"]
Variant = Literal["full", "no_freq_cal", "no_cal"]
OodLevel = Annotated[int, Field(ge=0, lt=100)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Positive = Annotated[int, Field(gt=0)]
Weight = Annotated[float, Field(ge=0)]


class Strict(BaseModel):
    """Frozen; refuses unknown keys and foreign types, but takes an int where a float is meant."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Grid(Strict):
    datasets: Annotated[list[Dataset], Field(min_length=1)]
    methods: Annotated[list[str], Field(min_length=1)]
    ood_levels: Annotated[list[OodLevel], Field(min_length=1)]
    seeds: Annotated[list[Seed], Field(min_length=1)]


class Ablation(Strict):
    datasets: list[Dataset]
    ood_levels: list[OodLevel]
    variants: list[Literal["no_freq_cal", "no_cal"]]
    lambda_sum: Weight


class Sensitivity(Strict):
    datasets: list[Dataset]
    ood_levels: list[OodLevel]
    lambda_sums: list[Annotated[int | float, Field(ge=0)]]  # kept as written: DVC names the cells by the text


class Source(Strict):
    source: Literal["phantom", "physionet", "path"]
    path: str | None
    labels_per_class: Positive
    pool_size: Positive

    @model_validator(mode="after")
    def path_goes_with_its_source(self) -> Source:
        if (self.source == "path") != (self.path is not None):
            raise ValueError("path must name a folder or zip when source is 'path', and be null otherwise")
        return self


class Phantom(Strict):
    records: Positive
    seed: Seed


class Data(Strict):
    sampling_rate: Annotated[int, Field(ge=50, le=1000)]
    ptbxl: Source
    cinc21: Source
    phantom: Phantom
    switches: dict[str, Any]

    def source(self, dataset: str) -> Source:
        return getattr(self, dataset)


class Split(Strict):
    strategy: Literal["random", "patient", "strat_fold"]
    seed: Seed


class Model(Strict):
    width: Positive


# YAML 1.1 reads a bare `off` as false; both spellings mean the same.
Amp = Annotated[Literal["off", "bf16"], BeforeValidator(lambda value: "off" if value is False else value)]


class Train(Strict):
    iterations: Positive
    evaluate_every: Positive
    checkpoint_every: Positive
    batch: Annotated[int, Field(ge=4, multiple_of=2)]
    learning_rate: Annotated[float, Field(gt=0)]
    device: Literal["auto", "cpu", "cuda"]
    amp: Amp
    threads: Positive

    @model_validator(mode="after")
    def evaluates_at_least_once(self) -> Train:
        if self.evaluate_every > self.iterations:
            raise ValueError("evaluate_every must not exceed iterations")
        return self


class Params(Strict):
    """All of params.yaml. The sections of `methods` are checked in full by the method that reads them."""

    profile: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    protocol: Protocol
    lambda_sum: Weight
    grid: Grid
    ablation: Ablation
    sensitivity: Sensitivity
    data: Data
    split: Split
    model: Model
    train: Train
    methods: dict[str, dict[str, Any]]

    @model_validator(mode="after")
    def every_method_is_known(self) -> Params:
        for name in [*self.grid.methods, *self.methods]:
            if name not in known_methods():
                raise ValueError(f"unknown method '{name}'; allowed are {', '.join(known_methods())}")
        for name in [*self.grid.methods, PROPOSED]:
            if name not in self.methods:
                raise ValueError(f"methods.{name} is missing; a method of the grid needs its section")
        if PROPOSED in self.grid.methods:
            raise ValueError(f"grid.methods must not list {PROPOSED}; its cells are made by stages of their own")
        return self


def known_methods() -> list[str]:
    """The methods that exist: one section each in protocols.yaml."""
    return [section for section in read_protocols() if section != "data"]


T = TypeVar("T", bound=Strict)


def validate(model: type[T], content: Any, where: str) -> T:
    """`content` as `model`; the first mistake becomes one sentence that starts with `where`."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{where}: {describe(model, error)}") from None


def describe(model: type[Strict], error: ValidationError) -> str:
    first = error.errors()[0]
    place = first["loc"]
    key = ".".join(str(part) for part in place)
    if first["type"] == "extra_forbidden":
        return f"unknown key '{key}'; allowed here are {', '.join(_keys_at(model, place[:-1]))}."
    if first["type"] == "missing":
        return f"key '{key}' is missing."
    reason = first["msg"].removeprefix("Value error, ")
    given = "" if isinstance(first["input"], dict | BaseModel) else f", not {first['input']!r}"
    return f"key '{key}': {reason}{given}." if key else f"{reason}."


def _keys_at(model: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    for part in place:
        model = model.model_fields[str(part)].annotation  # type: ignore[assignment]
    return list(model.model_fields)


def read_yaml(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=SafeLoader)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; run `safeecgmatch profile demo` in the project's folder.") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None


def load_params(path: Path = PARAMS_FILE) -> Params:
    return validate(Params, read_yaml(path), str(path))


@cache
def read_protocols() -> dict[str, dict[str, dict[str, Any]]]:
    return read_yaml(PROTOCOLS_FILE)


def switches(section: str, protocol: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """The switches of `section` under `protocol`, with the overrides of params.yaml laid over them."""
    if section not in read_protocols():
        raise UserError(f"unknown method '{section}'; allowed are {', '.join(known_methods())}.")
    table = read_protocols()[section]
    values = {name: entry[protocol] for name, entry in table.items() if protocol in entry}
    unknown = [name for name in overrides if name not in values]
    if unknown:
        raise UserError(
            f"{PARAMS_FILE}: unknown switch '{unknown[0]}' for {section} under protocol {protocol}; "
            f"allowed are {', '.join(values) or 'none'}."
        )
    return {**values, **overrides}


@dataclass(frozen=True)
class Cell:
    """One training: one process, one folder, one MLflow run."""

    dataset: str
    method: str
    ood: int
    seed: int
    variant: str = "full"
    lambda_sum: float | None = None
    stage_name: str = "train"
    tag: str = ""  # what tells ablation and sensitivity cells from the main run, in paths and stage names

    @property
    def path(self) -> str:
        prefix = "lambda_" if self.stage_name == "train_sensitivity" else ""
        method = f"{self.method}-{prefix}{self.tag}" if self.tag else self.method
        return f"{self.dataset}/{method}/{self.ood}/{self.seed}"

    @property
    def stage(self) -> str:
        middle = self.method if self.stage_name == "train" else self.tag
        parts = [self.dataset, middle, str(self.ood), str(self.seed)]
        return f"{self.stage_name}@{'-'.join(part for part in parts if part)}"

    def describe(self) -> dict[str, Any]:
        names = ("dataset", "method", "ood", "seed", "variant", "lambda_sum")
        return {name: getattr(self, name) for name in names}


def cells(params: Params) -> list[Cell]:
    """Every cell that params.yaml asks for, in the order of the paper's tables."""
    grid, ablation, sensitivity = params.grid, params.ablation, params.sensitivity
    seeds = grid.seeds
    baselines = [
        Cell(dataset, method, ood, seed)
        for dataset in grid.datasets
        for method in grid.methods
        for ood in grid.ood_levels
        for seed in seeds
    ]
    proposed = [
        Cell(dataset, PROPOSED, ood, seed, "full", params.lambda_sum, "train_safeecgmatch")
        for dataset in grid.datasets
        for ood in grid.ood_levels
        for seed in seeds
    ]
    ablated = [
        Cell(dataset, PROPOSED, ood, seed, variant, ablation.lambda_sum, "train_ablation", variant)
        for dataset in ablation.datasets
        for variant in ablation.variants
        for ood in ablation.ood_levels
        for seed in seeds
    ]
    weighted = [
        Cell(dataset, PROPOSED, ood, seed, "full", float(lambda_sum), "train_sensitivity", str(lambda_sum))
        for dataset in sensitivity.datasets
        for lambda_sum in sensitivity.lambda_sums
        for ood in sensitivity.ood_levels
        for seed in seeds
    ]
    return [*baselines, *proposed, *ablated, *weighted]


def hash_of(content: Any) -> str:
    """A short hash of typed content: `3` and `3.0` differ in text, never here, because fields are typed first."""
    text = json.dumps(content, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


assert set(DATASETS) == {"ptbxl", "cinc21"}, "the Dataset type above must list every dataset"
