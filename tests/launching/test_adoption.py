"""A finished result is taken over only if it is exactly what is wanted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from safeecgmatch.cells import find_cell
from safeecgmatch.config import load_params
from safeecgmatch.engine import fingerprint
from safeecgmatch.engine.fingerprint import code_of, resolve
from safeecgmatch.files import write_json
from safeecgmatch.launching.adoption import adopt, waiting
from safeecgmatch.launching.scratch import Scratch
from tests.conftest import ROOT
from tests.micro import Project, micro_params

CELL = "ptbxl/fixmatch/60/1"


class Finished:
    """A finished result of the micro study's FixMatch cell in a project of its own, with stand-ins for its files."""

    def __init__(self, project: Project, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shutil.copytree(project.root / "data", root / "data", symlinks=True)
        shutil.copytree(ROOT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__"))
        monkeypatch.chdir(root)
        monkeypatch.delenv("DVC_ROOT", raising=False)
        monkeypatch.setattr(fingerprint, "SOURCES", root / "src")
        self.root, self.params = root, micro_params()
        config = self.wanted()
        self.scratch = Scratch.of(CELL, config["fingerprint"])
        self.scratch.folder.mkdir(parents=True)
        self.scratch.config.write_text(yaml.safe_dump(config))
        write_json(self.scratch.record, {"uid": "u", "code": code_of("fixmatch")})
        with self.scratch.sealing(config["fingerprint"]) as folder:
            (folder / "run").mkdir()
            (folder / "run" / "model.safetensors").write_bytes(bytes(1000))
            write_json(folder / "run.json", {"uid": "u"})

    def wanted(self) -> dict:
        (self.root / "params.yaml").write_text(yaml.safe_dump(self.params))
        params = load_params()
        return resolve(params, find_cell(params, CELL))

    def waiting(self) -> Path | None:
        params = load_params()
        return waiting(params, find_cell(params, CELL))


@pytest.fixture
def finished(study: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Finished:
    return Finished(study, tmp_path / "root", monkeypatch)


def test_what_is_wanted_is_taken_over_with_its_run_id(finished: Finished) -> None:
    write_json(finished.scratch.mlflow, {"run_id": "r", "logged": True})
    assert finished.waiting() == finished.scratch.finished
    assert adopt(CELL, finished.wanted())
    assert (finished.root / "runs" / CELL / "model.safetensors").read_bytes() == bytes(1000)
    record = (finished.root / "tracking" / CELL / "run.json").read_text()
    assert yaml.safe_load(record) == {"uid": "u", "run_id": "r", "logged": True}
    assert finished.waiting() == finished.scratch.finished, "DVC has not recorded it yet"
    finished.scratch.discard()
    assert not (finished.root / "scratch" / "ptbxl").exists() and finished.waiting() is None
    assert finished.scratch.recorded.exists()
    finished.scratch.discard()


def other_params(finished: Finished) -> None:
    finished.params["methods"]["fixmatch"]["threshold"] = 0.9


def other_code(finished: Finished) -> None:
    with (finished.root / "src/safeecgmatch/methods/fixmatch/method.py").open("a") as stream:
        stream.write("\nSHARE = 0.5\n")


def other_data(finished: Finished) -> None:
    split = finished.root / "data/splits/ptbxl/60/1/split.npz"
    content = split.read_bytes()
    split.unlink()  # it may be a link into DVC's cache
    split.write_bytes(content + b"x")


def truncated(finished: Finished) -> None:
    (finished.scratch.finished / "run" / "model.safetensors").write_bytes(bytes(500))


def edited(finished: Finished) -> None:
    (finished.scratch.finished / "run" / "model.safetensors").write_bytes(bytes(999) + b"1")


def incomplete(finished: Finished) -> None:
    (finished.scratch.finished / "run" / "model.safetensors").unlink()


def unsealed(finished: Finished) -> None:
    (finished.scratch.finished / "finished.json").write_text("{")


def renamed(finished: Finished) -> None:
    other_params(finished)
    finished.scratch.folder.rename(finished.scratch.folder.parent / finished.wanted()["fingerprint"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            other_params,
            "holds a finished result of other params (hyper.threshold is 0.7, wanted 0.9); it is not used.",
        ),
        (other_code, "holds a finished result of other code (safeecgmatch.methods.fixmatch.method); it is not used."),
        (other_data, "holds a finished result of other data; it is not used."),
        (truncated, "was truncated or edited after it was written (run/model.safetensors); it is not used."),
        (edited, "was truncated or edited after it was written (run/model.safetensors); it is not used."),
        (incomplete, "has other files than it was written with (run/model.safetensors); it is not used."),
        (unsealed, "has no readable finished.json; it is not used."),
        (renamed, "is of the fingerprint "),
    ],
)
def test_anything_else_is_never_taken_over(
    finished: Finished, capsys: pytest.CaptureFixture[str], change: Callable, reason: str
) -> None:
    change(finished)
    config = finished.wanted()
    assert finished.waiting() is None
    assert not adopt(CELL, config) and reason in capsys.readouterr().out
    assert not (finished.root / "runs").exists() and not (finished.root / "tracking").exists()
