"""params.yaml as typed, frozen objects; a mistake in it is one sentence that names it."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from safeecgmatch.data.datasets import known_datasets
from safeecgmatch.errors import UserError
from safeecgmatch.protocols import known_methods, read_yaml

PARAMS_FILE = Path("params.yaml")
PROPOSED = "safeecgmatch"  # the paper's own method; its cells have their own stages


def must_be_known(dataset: str) -> str:
    if dataset not in known_datasets():
        raise ValueError(f"unknown dataset; allowed are {', '.join(known_datasets())}")
    return dataset


Dataset = Annotated[str, AfterValidator(must_be_known)]
Protocol = Literal["paper", "release"]
OodLevel = Annotated[int, Field(ge=0, lt=100)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Weight = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Percentile = Annotated[float, Field(ge=0, le=100)]
Scale = Annotated[float, Field(gt=0)]  # a temperature, a kernel width: something to divide by


WARM_UP, EPOCHS = "warm_up", " epochs"


def _checked_moment(value: int | str) -> int | str:
    good = value >= 0 if isinstance(value, int) else value == WARM_UP or re.fullmatch(rf"\d+{EPOCHS}", value)
    if not good:
        raise ValueError("must be 'warm_up', epochs such as '4 epochs', or iterations of a budget of 50,000")
    return value


# When something starts, or how long it lasts: `engine.contract.Setting.moment` says what that is in iterations.
Moment = Annotated[int | str, AfterValidator(_checked_moment), "moment"]
# Of an average that each iteration moves, for a budget of 50,000: `engine.contract.Setting.decay` scales it.
Decay = Annotated[float, Field(gt=0, lt=1), "decay"]


class Strict(BaseModel):
    """Frozen; refuses unknown keys and foreign types, but takes an int where a float is meant."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def each_once(values: list[Any]) -> list[Any]:
    """Two equal entries would be two cells in one folder."""
    twice = sorted({str(value) for value in values if values.count(value) > 1})
    if twice:
        raise ValueError(f"lists {', '.join(twice)} more than once; every entry may be there once")
    return values


T = TypeVar("T")
Distinct = Annotated[list[T], AfterValidator(each_once)]
Several = Annotated[list[T], Field(min_length=1), AfterValidator(each_once)]


class Grid(Strict):
    datasets: Several[Dataset]
    methods: Several[str]
    ood_levels: Several[OodLevel]
    seeds: Several[Seed]


Variant = Literal[
    "no_freq_cal", "no_cal", "learned_t", "learned_no_freq_cal", "learned_two_time", "two_time", "coupled",
    "log_spectrum",
]  # fmt: skip


class Ablation(Strict):
    datasets: Distinct[Dataset]
    ood_levels: Distinct[OodLevel]
    variants: Distinct[Variant]
    lambda_sum: Weight  # of every cell of SafeECGMatch but its main runs and those of the sensitivity


class Variants(Strict):
    datasets: Distinct[Dataset]
    ood_levels: Distinct[OodLevel]
    names: Distinct[Variant]


class Sensitivity(Strict):
    datasets: Distinct[Dataset]
    ood_levels: Distinct[OodLevel]
    lambda_sums: Distinct[Annotated[int | float, Field(ge=0)]]  # kept as written: DVC names the cells by the text


class Arm(Strict):
    datasets: Distinct[Dataset]
    methods: Distinct[str]


class Arms(Strict):
    seen_pool: Arm
    val150: Arm


class Source(Strict):
    source: Literal["phantom", "physionet", "path"]
    path: str | None
    labels_per_class: Positive
    pool_size: Positive
    corpus: list[str] = []  # reports set it: the sources of the records, where they are not all of the dataset's

    @model_validator(mode="after")
    def path_goes_with_its_source(self) -> Source:
        if (self.source == "path") != (self.path is not None):
            raise ValueError("path must name a folder or zip when source is 'path', and be null otherwise")
        return self


class Phantom(Strict):
    records: Positive
    seed: Seed


class Data(Strict):
    """Besides these keys one section for each dataset, under its name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[Dataset, Source] = Field(init=False)

    sampling_rate: Annotated[int, Field(ge=50, le=1000)]
    phantom: Phantom
    switches: dict[str, Any]

    def source(self, dataset: str) -> Source:
        if dataset not in self.__pydantic_extra__:
            raise UserError(f"params.yaml: data.{dataset} is missing; every dataset needs its section.")
        return self.__pydantic_extra__[dataset]


class Split(Strict):
    strategy: Literal["random", "patient", "strat_fold"]
    seed: Seed | Literal["run"]  # run: the 8:1:1 parts are drawn by the seed of each run


class Model(Strict):
    width: Positive


class Train(Strict):
    iterations: Positive
    epoch: Positive
    warm_up: Count
    batch: Annotated[int, Field(ge=4, multiple_of=2)]
    learning_rate: Annotated[float, Field(gt=0)]
    device: Literal["auto", "cpu", "cuda"]
    amp: Literal["off", "bf16"]
    threads: Positive

    @model_validator(mode="after")
    def holds_whole_epochs(self) -> Train:
        if self.iterations % self.epoch:
            raise ValueError("iterations must be a multiple of epoch: a smaller budget is fewer epochs")
        if self.warm_up >= self.iterations:
            raise ValueError("warm_up must be less than iterations")
        return self


class Params(Strict):
    """All of params.yaml. The sections of `methods` are checked in full by the method that reads them."""

    profile: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    protocol: Protocol
    lambda_sum: Weight
    grid: Grid
    readings: Distinct[Variant]
    ablation: Ablation
    variants: Variants
    sensitivity: Sensitivity
    arms: Arms
    data: Data
    split: Split
    model: Model
    train: Train
    checkpoint_every: Positive
    methods: dict[str, dict[str, Any]]

    def datasets(self) -> list[str]:
        """All that any section names, those of the grid first."""
        sections = (self.grid, self.ablation, self.variants, self.sensitivity, self.arms.seen_pool, self.arms.val150)
        return list(dict.fromkeys(chain.from_iterable(section.datasets for section in sections)))

    @model_validator(mode="after")
    def the_grid_goes_with_its_sections(self) -> Params:
        arms = [self.arms.seen_pool, self.arms.val150]
        for dataset in self.datasets():
            self.data.source(dataset)
        asked = [*self.grid.methods, *(name for arm in arms for name in arm.methods)]
        for name in [*asked, *self.methods]:
            if name not in known_methods():
                raise ValueError(f"unknown method '{name}'; allowed are {', '.join(known_methods())}")
        for name in [*asked, PROPOSED]:
            if name not in self.methods:
                raise ValueError(f"methods.{name} is missing; a method of the grid needs its section")
        if PROPOSED in self.grid.methods:
            raise ValueError(f"grid.methods must not list {PROPOSED}; its cells are made by stages of their own")
        return self


S = TypeVar("S", bound=Strict)


def validate(model: type[S], content: Any, where: str) -> S:
    """`content` as `model`; the first mistake becomes one sentence that starts with `where`."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{where}: {describe(model, error)}") from None


def describe(model: type[Strict], error: ValidationError) -> str:
    mistakes = error.errors()  # a misspelt key is unknown and missing at once: unknown says more
    first = next((mistake for mistake in mistakes if mistake["type"] == "extra_forbidden"), mistakes[0])
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
        field = model.model_fields.get(str(part))
        model = field.annotation if field else Source  # type: ignore[assignment]
    return list(model.model_fields)


def load_params(path: Path = PARAMS_FILE) -> Params:
    return validate(Params, read_yaml(path), str(path))
