"""params.yaml: typed, frozen, and one clear sentence for every mistake."""

from __future__ import annotations

import copy
import shutil

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from safeecgmatch.cells import cells
from safeecgmatch.config import load_params, validate
from safeecgmatch.engine.method import method_class
from safeecgmatch.errors import UserError
from safeecgmatch.files import hash_of, read_yaml
from safeecgmatch.profiles import compose, compose_params, profile_names
from safeecgmatch.protocols import known_methods, read_protocol, switches
from tests.conftest import ROOT
from tests.methods.harness import section

PROFILES = ROOT / "profiles"


@pytest.fixture
def content():
    return yaml.safe_load((ROOT / "params.yaml").read_text())


def load(content, tmp_path) -> object:
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(content))
    return load_params(path)


def test_params_are_the_demo_profile():
    assert (ROOT / "params.yaml").read_text() == compose("demo", PROFILES)


@pytest.mark.parametrize("name", profile_names(PROFILES))
def test_every_profile_is_valid_and_says_its_name(name):
    assert compose_params(name, PROFILES).profile == name


@pytest.mark.parametrize("name", profile_names(PROFILES))
def test_a_profile_has_the_cells_that_its_lists_name(name):
    params = compose_params(name, PROFILES)
    grid, ablation, variants, weights = params.grid, params.ablation, params.variants, params.sensitivity
    rows = len(grid.methods) + 1 + len(params.readings)  # baselines, SafeECGMatch, its other readings
    counts = [rows * len(grid.datasets) * len(grid.ood_levels)]
    counts += [len(ablation.variants) * len(ablation.datasets) * len(ablation.ood_levels)]
    counts += [len(variants.names) * len(variants.datasets) * len(variants.ood_levels)]
    counts += [len(weights.lambda_sums) * len(weights.datasets) * len(weights.ood_levels)]
    counts += [len(arm.datasets) * len(arm.methods) for arm in (params.arms.seen_pool, params.arms.val150)]
    assert len(cells(params)) == sum(counts) * len(grid.seeds)


def test_a_profile_is_its_values_over_the_base_with_the_remarks_of_both(tmp_path):
    (tmp_path / "base.yaml").write_text(
        "# Base.\na: {x: 1, y: 2} # both\nb: 3 # a number\n\n# below b\nc:\n  d: 4 # four\n  e: [1, 2]\n\nf: 'off'\n"
    )
    (tmp_path / "small.yaml").write_text("# Small.\na: {y: 5}\nb: 30\nc:\n  d: 40 # forty\n  e: [1]\n")
    assert compose("small", tmp_path) == (
        "# Small.\na: {x: 1, y: 5} # both\nb: 30 # a number\n\n# below b\nc:\n  d: 40 # forty\n  e: [1]\n\nf: 'off'\n"
    )


def test_an_unknown_key_in_a_profile_names_the_profile(tmp_path):
    shutil.copy(PROFILES / "base.yaml", tmp_path)
    (tmp_path / "odd.yaml").write_text("profile: odd\ntrain: {iteration: 5}\n")
    with pytest.raises(UserError, match=r"odd.yaml: unknown key 'train.iteration'"):
        compose_params("odd", tmp_path)


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
        ("grid.seeds", [1, 2, 1], ["grid.seeds", "lists 1 more than once"]),
        ("grid.methods", ["fixmatch", "fixmatch"], ["grid.methods", "lists fixmatch more than once"]),
        ("sensitivity.lambda_sums", [3, 3.0], ["sensitivity.lambda_sums", "lists 3, 3.0 more than once"]),
        ("train.iterations", "150", ["train.iterations", "integer", "'150'"]),
        ("train.iterations", True, ["train.iterations", "integer"]),
        ("train.learning_rate", float("nan"), ["train.learning_rate", "finite"]),
        ("train.batch", 31, ["train.batch", "multiple of 2"]),
        ("train.epoch", 1000, ["train", "iterations must be a multiple of epoch"]),
        ("train.epoch", 30, ["train", "iterations must be a multiple of epoch"]),
        ("train.evaluate_every", 10, ["unknown key 'train.evaluate_every'", "epoch"]),
        ("train.warm_up", 100, ["train", "warm_up must be less than iterations"]),
        ("train.warm_up", "half", ["train.warm_up", "integer", "'half'"]),
        ("train.warm_up", "40%", ["train.warm_up", "integer", "'40%'"]),
        ("train.warm_up", -1, ["train.warm_up", "greater than or equal to 0"]),
        ("split.seed", "walk", ["split.seed", "'walk'"]),
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


@pytest.mark.parametrize(
    ("section", "key", "sentence"),
    [
        ("train", "threads", r"params.yaml: key 'train.threads' is missing"),
        ("methods", "fixmatch", r"methods.fixmatch is missing"),
        ("data", "cinc21", r"data.cinc21 is missing"),
    ],
)
def test_a_missing_key_and_a_missing_section_of_the_grid_are_named(content, tmp_path, section, key, sentence):
    del content[section][key]
    with pytest.raises(UserError, match=sentence):
        load(content, tmp_path)


def test_a_misspelt_key_is_unknown_rather_than_missing(content, tmp_path):
    content["train"]["thread"] = content["train"].pop("threads")
    with pytest.raises(UserError, match=r"params.yaml: unknown key 'train.thread'; allowed here are .*threads"):
        load(content, tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1", "is not valid YAML"),
        ("profile: 2026-13-45", "is not valid YAML"),
        (f"seed: {'9' * 5000}", "is not valid YAML"),
        ("lambda_sum: 3.0\nlambda_sum: 1.0\n", "duplicate key"),
        ("profile: d\u00e9mo".encode("latin-1"), "is not UTF-8"),
        (None, "does not exist; run `safeecgmatch profile demo`"),
        ("", "cannot be read"),  # for a folder
    ],
)
def test_a_missing_or_broken_file_is_one_sentence(tmp_path, text, words):
    file = tmp_path / "params.yaml"
    if isinstance(text, bytes):
        file.write_bytes(text)
    elif text:
        file.write_text(text)
    elif text is not None:
        file.mkdir()
    with pytest.raises(UserError, match=words) as error:
        load_params(file)
    assert "\n" not in str(error.value)


def test_numbers_are_read_as_dvc_reads_them(tmp_path):
    from dvc.utils.serialize import load_yaml

    file = tmp_path / "numbers.yaml"
    file.write_text("values: [010, 0o17, 0x1f, 1_000, 1e-3, 1e3, .5, on, off, yes, ~, 3.0, +7]\n")
    assert read_yaml(file) == load_yaml(str(file)) and read_yaml(file)["values"][0] == 10


def test_an_int_is_taken_where_a_float_is_meant(content, tmp_path):
    whole = load(set_key(content, "lambda_sum", 3), tmp_path)
    real = load(set_key(content, "lambda_sum", 3.0), tmp_path)
    assert whole == real and isinstance(whole.lambda_sum, float)
    assert hash_of(whole.model_dump()) == hash_of(real.model_dump())


def test_amp_off_survives_yaml(tmp_path):
    """Without its quotes too: in YAML 1.2 `off` is a word."""
    text = (ROOT / "params.yaml").read_text()
    assert 'amp: "off"' in text
    (tmp_path / "params.yaml").write_text(text.replace('amp: "off"', "amp: off"))
    assert load_params(tmp_path / "params.yaml").train.amp == "off"


def test_cells_are_unique_and_named_like_their_stages():
    params = compose_params("paper", PROFILES)
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
    assert switches("fixmatch", "release", {})["ramp"] == "warm_up"
    overrides = {"paper": {"ramp": 100}, "release": {"start": "4 epochs"}}
    assert switches("fixmatch", "paper", overrides)["ramp"] == 100
    assert switches("fixmatch", "release", overrides)["ramp"] == "warm_up", "an override stays with its protocol"
    with pytest.raises(UserError, match=r"unknown switch 'methods.fixmatch.switches.release.rampe'; .* are .*ramp"):
        switches("fixmatch", "paper", {"release": {"rampe": 1}})
    with pytest.raises(UserError, match=r"unknown key 'data.switches.papers'; allowed here are paper, release"):
        switches("data", "paper", {"papers": {}})
    with pytest.raises(UserError, match=r"methods.fixmatch.switches must be \{\} or hold mappings by protocol"):
        switches("fixmatch", "paper", {"ramp": 1})


def test_every_switch_says_where_it_comes_from():
    for owner in ["data", *known_methods()]:
        for name, entry in read_protocol(owner).items():
            assert set(entry) <= {"paper", "release", "why"}, f"{owner}.{name}"
            assert entry["why"].endswith(".") and " " in entry["why"], f"{owner}.{name}: `why` is no sentence"
            assert {"paper", "release"} & set(entry), f"{owner}.{name}"


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
    kind, values = method_class(module), switches(name, protocol, {})
    values.pop("module", None)
    for model, content in ((kind.Hyper, section(name)), (kind.Switches, values)):
        for key in numbers(model):
            for wrong in (-5, -0.5, float("inf"), float("nan")):
                with pytest.raises(UserError, match=f"'{key}"):
                    validate(model, content | {key: wrong}, name)


@pytest.mark.parametrize("share", ["threshold", "open_threshold", "outlier_threshold"])
def test_a_threshold_on_a_probability_is_at_most_one(share: str) -> None:
    with pytest.raises(UserError, match="less than or equal to 1"):
        validate(method_class("iomatch").Hyper, section("iomatch") | {share: 1.5}, "iomatch")
