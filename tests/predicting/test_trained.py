"""A cell's folder: the same bytes as its training, and one sentence where it cannot be used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from safeecgmatch.errors import UserError
from safeecgmatch.predicting.running import Question, read_portions
from safeecgmatch.predicting.trained import Trained, find_cell, usable_device
from safeecgmatch.predictions import ood_score, read_arrays
from safeecgmatch.protocols import known_methods
from tests.predicting.conftest import Made


def assert_same_bytes(made: Made, part: str, model: Path | None = None) -> None:
    """`model`: an export of the cell that is to answer in its place."""
    trained, stored = Trained.open(model or made.folder), read_arrays(made.folder / "predictions.npz")
    portions = list(read_portions([Question("", header) for header in made.headers(part)], trained))
    scores = [trained.scores(portion.records) for portion in portions]
    log_probs = np.concatenate([score.log_probs for score in scores])
    unseen = np.concatenate([score.unseen for score in scores])
    assert log_probs.tobytes() == stored[f"{part}.log_probs.{trained.branch}"].tobytes()
    assert unseen.tobytes() == ood_score(stored, trained.branch, split=part).tobytes()
    assert not any(portion.bad for portion in portions)


@pytest.mark.parametrize("part", ["validation", "test", "open_test"])
def test_the_cells_own_records_give_the_bytes_of_its_predictions(made: Made, part: str) -> None:
    assert_same_bytes(made, part)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["paper", "release"])
@pytest.mark.parametrize("name", known_methods())
def test_every_method_gives_the_bytes_of_its_predictions(
    make_cell: Callable[..., Made], name: str, protocol: str
) -> None:
    assert_same_bytes(make_cell(name, protocol), "open_test")


def test_another_order_changes_nothing_that_matters(made: Made, trained: Trained) -> None:
    headers = made.headers("test")
    [forwards], [backwards] = (list(read_portions([Question("", header) for header in order], trained))
                               for order in (headers, headers[::-1]))  # fmt: skip
    one, other = (trained.scores(portion.records) for portion in (forwards, backwards))
    np.testing.assert_allclose(np.exp(one.log_probs), np.exp(other.log_probs)[::-1], atol=1e-6)
    alone = np.concatenate([trained.scores(forwards.records[place : place + 1]).log_probs for place in range(3)])
    np.testing.assert_allclose(np.exp(alone), np.exp(one.log_probs)[:3], atol=1e-6)


def test_the_stored_threshold_and_any_other(made: Made, trained: Trained) -> None:
    summary = json.loads((made.folder / "summary.json").read_text())
    assert (trained.share, trained.threshold) == (0.95, summary["accept_threshold"])
    stored = read_arrays(made.folder / "predictions.npz")
    scores = ood_score(stored, trained.branch, split="validation")
    for share in (0.5, 0.9):
        other = Trained.open(made.folder, share)
        assert np.mean(scores <= other.threshold) == pytest.approx(share, abs=1 / len(scores))


def test_a_cell_is_found_below_runs_or_anywhere(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made.folder.parents[4])
    assert find_cell("ptbxl/safeecgmatch/60/1").resolve() == made.folder
    assert find_cell(str(made.folder)) == made.folder
    with pytest.raises(UserError, match=r"There is no finished cell ptbxl/x/60/1.*safeecgmatch cells"):
        find_cell("ptbxl/x/60/1")


def test_a_cell_of_a_gpu_answers_on_a_cpu() -> None:
    assert [usable_device(name) for name in ("cpu", "cuda", "auto")] == ["cpu", "auto", "auto"]


def damage(folder: Path, file: str, how: Callable[[dict], object]) -> None:
    """Change a JSON or YAML file in place."""
    load, dump = (json.loads, json.dumps) if file.endswith(".json") else (yaml.safe_load, yaml.safe_dump)
    content = load((folder / file).read_text())
    how(content)
    (folder / file).write_text(dump(content))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


DAMAGES: dict[str, Callable[[Path], object]] = {
    r"has no model\.safetensors, so it is no finished cell": lambda cell: (cell / "model.safetensors").unlink(),
    r"has no predictions\.npz": lambda cell: (cell / "predictions.npz").unlink(),
    r"holds weights\.pt, which this version does not know": lambda cell: (cell / "weights.pt").touch(),
    r"summary\.json does not state accept_threshold, which older versions": lambda cell: damage(
        cell, "summary.json", lambda summary: summary.pop("accept_threshold")
    ),
    r"its training diverged \(The loss": lambda cell: damage(
        cell, "summary.json", lambda summary: summary.update(diverged="The loss stopped being finite.")
    ),
    r"summary\.json is damaged": lambda cell: (cell / "summary.json").write_text("{"),
    "this version can load.*not a zip file": lambda cell: cut(cell / "predictions.npz"),
    "this version can load.*(YAML|Error)": lambda cell: cut(cell / "config.yaml"),
    "this version can load.*(utf|UTF)-8": lambda cell: (cell / "config.yaml").write_bytes(b"cell: \xff\xfe"),
    "no network that this version can load": lambda cell: (cell / "model.safetensors").write_bytes(b"not weights"),
    "this version can load.*KeyError: 'train'": lambda cell: damage(
        cell, "config.yaml", lambda config: config.pop("train")
    ),
    "this version can load.*size mismatch": lambda cell: damage(
        cell, "config.yaml", lambda config: config["model"].update(width=4)
    ),
    "no method 'gone'": lambda cell: damage(cell, "config.yaml", lambda config: config.update(module="gone")),
    "this version can load.*old_switch": lambda cell: damage(
        cell, "config.yaml", lambda config: config["switches"].update(old_switch=1)
    ),
}


@pytest.mark.parametrize("sentence", DAMAGES)
def test_a_folder_of_another_version_is_one_sentence(made: Made, tmp_path: Path, sentence: str) -> None:
    cell = tmp_path / "cell"
    shutil.copytree(made.folder, cell)
    DAMAGES[sentence](cell)
    with pytest.raises(UserError, match=sentence) as error:
        Trained.open(cell)
    assert "\n" not in str(error.value)


def test_files_of_the_system_do_not_matter(made: Made, tmp_path: Path) -> None:
    cell = tmp_path / "cell"
    shutil.copytree(made.folder, cell)
    (cell / ".DS_Store").touch()
    Trained.open(cell)
