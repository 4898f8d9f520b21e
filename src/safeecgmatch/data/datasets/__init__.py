"""One module per dataset, which ends in `DATASET = Dataset(...)`; it is found by the module's name."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from safeecgmatch.errors import UserError

if TYPE_CHECKING:  # the names alone are asked for by everyone who reads params.yaml
    from safeecgmatch.data.descriptor import Dataset


def known_datasets() -> list[str]:
    return sorted(file.stem for file in Path(__file__).parent.glob("[a-z]*.py"))


def find_dataset(name: str) -> Dataset:
    if name not in known_datasets():
        raise UserError(f"There is no dataset {name!r}: use one of {', '.join(known_datasets())}.")
    dataset: Dataset = import_module(f"{__name__}.{name}").DATASET
    return dataset
