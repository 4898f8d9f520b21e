"""params.yaml: typed, frozen, and one clear sentence for every mistake."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from safeecgmatch.cells import cells
from safeecgmatch.config import load_params
from safeecgmatch.errors import UserError
from safeecgmatch.files import hash_of
from safeecgmatch.protocols import known_methods, read_protocol, switches
from tests.conftest import ROOT

PROFILES = sorted((ROOT / "profiles").glob("*.yaml"))


@pytest.fixture
def content():
    return yaml.safe_load((ROOT / "params.yaml").read_text())


def load(content, tmp_path) -> object:
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(content))
    return load_params(path)


def test_params_are_the_demo_profile():
    demo = yaml.safe_load((ROOT / "profiles" / "demo.yaml").read_text())
    assert yaml.safe_load((ROOT / "params.yaml").read_text()) == demo


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.stem)
def test_every_profile_is_valid_and_says_its_name(profile):
    params = load_params(profile)
    assert params.profile == profile.stem


def test_the_profiles_have_the_cells_of_the_design():
    assert {path.stem for path in PROFILES} == {"demo", "cpu", "paper"}
    counts = {path.stem: len(cells(load_params(path))) for path in PROFILES}
    assert counts == {"demo": 108, "cpu": 84, "paper": 162}


def test_params_are_frozen():
    params = load_params(ROOT / "params.yaml")
    with pytest.raises(ValidationError):
        params.lambda_sum = 2.0  # type: ignore[misc]


def set_key(content, key, value) -> dict:
    content = copy.deepcopy(content)
    *path, last = key.split(".")
    place = content
    for part in path:
        place = place[part]
    place[last] = value
    return content


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("lamda_sum", 1.0, ["unknown key 'lamda_sum'", "allowed here are", "lambda_sum"]),
        ("train.iteration", 5, ["unknown key 'train.iteration'", "iterations"]),
        ("grid.ood_levels", [30, 130], ["grid.ood_levels.1", "less than 100", "130"]),
        ("lambda_sum", -1.0, ["lambda_sum", "greater than or equal to 0", "-1.0"]),
        ("grid.methods", ["fixmach"], ["unknown method 'fixmach'", "fixmatch"]),
        ("grid.methods", ["safeecgmatch"], ["safeecgmatch", "stages of their own"]),
        ("grid.seeds", [], ["grid.seeds", "at least 1 item"]),
        ("train.iterations", "150", ["train.iterations", "integer", "'150'"]),
        ("train.iterations", True, ["train.iterations", "integer"]),
        ("train.learning_rate", float("nan"), ["train.learning_rate", "finite"]),
        ("train.batch", 31, ["train.batch", "multiple of 2"]),
        ("train.evaluate_every", 1000, ["train", "evaluate_every must not exceed iterations"]),
        ("train.amp", "fp16", ["train.amp", "'off' or 'bf16'"]),
        ("protocol", "papers", ["protocol", "'paper' or 'release'", "'papers'"]),
        ("data.ptbxl.source", "path", ["data.ptbxl", "path must name a folder or zip"]),
        ("data.ptbxl.pool", 5, ["unknown key 'data.ptbxl.pool'", "pool_size"]),
        ("data.ptbx", 5, ["data.ptbx", "unknown dataset; allowed are cinc21, ptbxl"]),
        ("grid.datasets", ["mimic"], ["grid.datasets.0", "unknown dataset", "'mimic'"]),
        ("profile", "../x", ["profile", "pattern"]),
    ],
)
def test_a_mistake_is_one_sentence(content, tmp_path, key, value, words):
    with pytest.raises(UserError) as error:
        load(set_key(content, key, value), tmp_path)
    message = str(error.value)
    assert "params.yaml" in message and "\n" not in message and message.endswith(".")
    for word in words:
        assert word in message


def test_a_missing_key_is_named(content, tmp_path):
    del content["train"]["threads"]
    with pytest.raises(UserError, match=r"params.yaml: key 'train.threads' is missing"):
        load(content, tmp_path)


def test_a_method_of_the_grid_needs_its_section(content, tmp_path):
    del content["methods"]["fixmatch"]
    with pytest.raises(UserError, match=r"methods.fixmatch is missing"):
        load(content, tmp_path)


def test_a_dataset_of_the_grid_needs_its_section(content, tmp_path):
    del content["data"]["cinc21"]
    with pytest.raises(UserError, match=r"data.cinc21 is missing"):
        load(content, tmp_path)


def test_a_missing_or_broken_file_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="does not exist; run `safeecgmatch profile demo`"):
        load_params(tmp_path / "params.yaml")
    (tmp_path / "params.yaml").write_text("a: [1")
    with pytest.raises(UserError, match="not valid YAML"):
        load_params(tmp_path / "params.yaml")


def test_an_int_is_taken_where_a_float_is_meant(content, tmp_path):
    whole = load(set_key(content, "lambda_sum", 3), tmp_path)
    real = load(set_key(content, "lambda_sum", 3.0), tmp_path)
    assert whole == real and isinstance(whole.lambda_sum, float)
    assert hash_of(whole.model_dump()) == hash_of(real.model_dump())


def test_amp_off_survives_yaml(content, tmp_path):
    assert load(set_key(content, "train.amp", False), tmp_path).train.amp == "off"


def test_cells_are_unique_and_named_like_their_stages():
    params = load_params(ROOT / "profiles" / "paper.yaml")
    listed = cells(params)
    assert len({cell.path for cell in listed}) == len({cell.stage for cell in listed}) == len(listed)
    by_stage = {cell.stage: cell for cell in listed}
    assert by_stage["train@ptbxl-fixmatch-30-1"].path == "ptbxl/fixmatch/30/1"
    assert by_stage["train_safeecgmatch@cinc21-60-3"].lambda_sum == 1.0
    assert by_stage["train_ablation@ptbxl-no_cal-60-2"].path == "ptbxl/safeecgmatch-no_cal/60/2"
    weighted = by_stage["train_sensitivity@ptbxl-3.0-60-1"]
    assert (weighted.path, weighted.lambda_sum) == ("ptbxl/safeecgmatch-lambda_3.0/60/1", 3.0)


def test_the_switches_of_a_protocol_and_their_overrides():
    assert switches("fixmatch", "paper", {})["ramp"] == 0
    assert switches("fixmatch", "release", {})["ramp"] == 500
    assert switches("fixmatch", "paper", {"ramp": 100})["ramp"] == 100
    with pytest.raises(UserError, match=r"unknown switch 'rampe' for fixmatch .* allowed are .*ramp"):
        switches("fixmatch", "paper", {"rampe": 1})


def test_every_switch_says_where_it_comes_from():
    for section in ["data", *known_methods()]:
        for name, entry in read_protocol(section).items():
            assert set(entry) <= {"paper", "release", "why"}, f"{section}.{name}"
            assert len(entry["why"]) > 20 and entry["why"].endswith("."), f"{section}.{name}"
            assert {"paper", "release"} & set(entry), f"{section}.{name}"


def test_every_method_has_a_file():
    for name in known_methods():
        assert Path(ROOT, "src", "safeecgmatch", "methods", name, "method.py").is_file()
