"""Every number of params.yaml has bounds, and params.yaml means here what it means to DVC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from safeecgmatch.config import load_params, validate
from safeecgmatch.engine.method import method_class
from safeecgmatch.errors import UserError
from safeecgmatch.files import read_yaml
from safeecgmatch.protocols import known_methods, switches
from tests.conftest import ROOT
from tests.methods.harness import section

MODULES = [
    (name, protocol, switches(name, protocol, {}).get("module", name))
    for name in known_methods()
    for protocol in ("paper", "release")
]


def numbers(model: type[BaseModel]) -> list[str]:
    """The fields that take a number, alone or beside a word."""
    found = []
    for name, info in model.model_fields.items():
        kinds = [info.annotation, *getattr(info.annotation, "__args__", ())]
        if any(kind in (int, float) or getattr(kind, "__origin__", None) in (int, float) for kind in kinds):
            found.append(name)
    return found


@pytest.mark.parametrize(("name", "protocol", "module"), MODULES)
def test_no_number_of_a_method_may_be_minus_five(name: str, protocol: str, module: str) -> None:
    kind = method_class(module)
    given: list[tuple[type[Any], dict[str, Any]]] = [(kind.Hyper, section(name))]
    values = switches(name, protocol, {})
    values.pop("module", None)
    given.append((kind.Switches, values))
    for model, content in given:
        for key in numbers(model):
            for wrong in (-5, -0.5, float("inf"), float("nan")):
                with pytest.raises(UserError, match=f"'{key}"):
                    validate(model, content | {key: wrong}, name)


@pytest.mark.parametrize("share", ["threshold", "open_threshold", "outlier_threshold"])
def test_a_threshold_on_a_probability_is_at_most_one(share: str) -> None:
    with pytest.raises(UserError, match="less than or equal to 1"):
        validate(method_class("iomatch").Hyper, section("iomatch") | {share: 1.5}, "iomatch")


def edited(folder: Path, old: str, new: str) -> Path:
    text = (ROOT / "params.yaml").read_text()
    assert old in text
    file = folder / "params.yaml"
    file.write_text(text.replace(old, new, 1))
    return file


def test_a_seed_with_a_leading_zero_is_the_number_that_dvc_reads(tmp_path: Path) -> None:
    file = edited(tmp_path, "seeds: [1, 2]", "seeds: [010, 2]")
    assert load_params(file).grid.seeds == [10, 2]


def test_numbers_are_read_as_dvc_reads_them(tmp_path: Path) -> None:
    from dvc.utils.serialize import load_yaml

    file = tmp_path / "numbers.yaml"
    file.write_text("values: [010, 0o17, 0x1f, 1_000, 1e-3, 1e3, .5, on, off, yes, ~, 3.0, +7]\n")
    assert read_yaml(file) == load_yaml(str(file))


def test_a_key_that_comes_twice_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="duplicate key"):
        load_params(edited(tmp_path, "lambda_sum: 1.0", "lambda_sum: 3.0\nlambda_sum: 1.0"))


def test_params_that_are_not_utf8_are_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_bytes("profile: d\u00e9mo".encode("latin-1"))
    with pytest.raises(UserError, match="not UTF-8"):
        load_params(file)


@pytest.mark.parametrize("text", ["profile: 2026-13-45", f"seed: {'9' * 5000}"])
def test_params_that_no_value_can_be_made_of_are_one_sentence(tmp_path: Path, text: str) -> None:
    file = tmp_path / "params.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match="is not valid YAML"):
        load_params(file)


def test_params_that_cannot_be_opened_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        load_params(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("iterations: 100", "iterations: 105", "multiple of epoch"),
        ("warm_up: 40", "warm_up: 100", "less than iterations"),
        ("warm_up: 40", "warm_up: -1", "warm_up"),
        ("  seed: 42", "  seed: walk", "split.seed"),
    ],
)
def test_a_schedule_that_cannot_be_is_one_sentence(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load_params(edited(tmp_path, old, new))
