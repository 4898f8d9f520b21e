"""The command line: profiles, listings, help texts, and mistakes answered by one sentence."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from typer.testing import CliRunner

from safeecgmatch import files
from safeecgmatch.cells import cells
from safeecgmatch.cli import app, main
from safeecgmatch.config import load_params
from safeecgmatch.errors import UserError
from safeecgmatch.files import write_text
from safeecgmatch.protocols import known_methods, read_protocol
from safeecgmatch.reporting import stored
from tests.conftest import ROOT

COMMANDS = ["", "profile", "run", "cells", "report", "claims", "protocol", "predict"]
COMMANDS += ["model", "model log", "model export", "mlflow", "mlflow ui", "mlflow backfill"]


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with params.yaml and two profiles, as the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    (tmp_path / "profiles").mkdir()
    for name in ("params.yaml", "profiles/base.yaml", "profiles/demo.yaml", "profiles/cpu.yaml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_version_is_that_of_the_package() -> None:
    assert invoke("--version") == f"safeecgmatch {version('safeecgmatch')}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_sentences_with_examples(command: str) -> None:
    text = invoke(*command.split(), "--help")
    description = text.partition("Examples:")[0].split("\n\n", 1)[1].strip()
    assert "Examples:" in text
    assert description[0].isupper() and description.endswith(".")
    assert "..." not in text.partition("Commands:")[2], "a short help text is cut off"


def test_profile_lists_and_installs(project: Path) -> None:
    assert invoke("profile").splitlines() == ["cpu", "demo  (installed)"]
    invoke("profile", "cpu")
    assert load_params(project / "params.yaml").profile == "cpu"
    assert invoke("profile").splitlines() == ["cpu  (installed)", "demo"]


def test_profile_refuses_an_unknown_name(project: Path) -> None:
    with pytest.raises(UserError, match="no profile 'huge'; those that exist are cpu, demo"):
        invoke("profile", "huge")


def test_profile_keeps_an_edited_file_unless_forced(project: Path) -> None:
    params = project / "params.yaml"
    edited = params.read_text().replace("protocol: paper", "protocol: release", 1)
    params.write_text(edited)
    with pytest.raises(UserError, match="--force"):
        invoke("profile", "cpu")
    assert params.read_text() == edited
    assert "it was edited" in invoke("profile")
    invoke("profile", "cpu", "--force")
    assert load_params(params).profile == "cpu"


def test_comments_are_no_edit(project: Path) -> None:
    params = project / "params.yaml"
    params.write_text("# a remark\n" + params.read_text())
    invoke("profile", "cpu")
    assert load_params(params).profile == "cpu"


def test_a_broken_profile_is_not_installed(project: Path) -> None:
    (project / "profiles" / "cpu.yaml").write_text("profile: 5\n")
    before = (project / "params.yaml").read_text()
    with pytest.raises(UserError, match=r"cpu\.yaml"):
        invoke("profile", "cpu")
    assert (project / "params.yaml").read_text() == before


def test_cells_show_their_state(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which stored cells are those of params.yaml is decided elsewhere (tests/test_pipeline.py)."""
    monkeypatch.setattr(stored, "asked_for", lambda params, data: lambda cell, config: config["reason"])
    first, second, third, fourth = [cell.path for cell in cells(load_params())][:4]
    for path, reason in ((first, "''"), (fourth, "other train")):
        write_text(project / "runs" / path / "config.yaml", f"reason: {reason}\n")
        write_text(project / "tracking" / path / "run.json", "{}")
    for path, name in ((second, "checkpoint.pt"), (third, "finished")):
        (project / "scratch" / path / "fingerprint" / name).mkdir(parents=True)
    lines = [line.split() for line in invoke("cells").splitlines()]
    states = [["done", first], ["checkpointed", second], ["trained", third], ["missing", fourth]]
    assert [line[:2] for line in lines[:4]] == states
    assert len(lines) == len(cells(load_params()))


def test_protocol_lists_every_switch_with_its_source() -> None:
    text = " ".join(invoke("protocol").split())
    for section in ["data", *known_methods()]:
        switches = read_protocol(section)
        assert section in text
        for name, entry in switches.items():
            assert name in text and " ".join(entry["why"].split()) in text
    assert invoke("protocol", "fixmatch").startswith("fixmatch\n")
    with pytest.raises(UserError, match="unknown method 'resnet'"):
        invoke("protocol", "resnet")


def test_a_mistake_is_one_sentence_and_status_1(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "safeecgmatch.cli", "run"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("Error: params.yaml does not exist") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "A file cannot be written (No space left on device)."),
        (PermissionError(errno.EACCES, "Permission denied", "p"), "p cannot be read or written (Permission denied)."),
    ],
)
def test_a_full_disk_and_a_locked_folder_are_one_sentence(
    project: Path, monkeypatch: pytest.MonkeyPatch, fault: OSError, sentence: str
) -> None:
    monkeypatch.setattr(files, "write_text", MagicMock(side_effect=fault))
    monkeypatch.setattr(sys, "argv", ["safeecgmatch", "profile", "cpu"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == f"Error: {sentence}"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["mlflow", "ui", "--port", "70000"], "'--port' / '-p': Input should be less than or equal to 65535"),
        (
            ["run", "--on", "abacus", "--dry-run"],
            "There is no launcher 'abacus'; those that exist are local, slurm, dask.",
        ),
        (["run", "--gpus", "0"], "--gpus was given, but train.device in params.yaml is 'cpu'"),
    ],
)
def test_a_wrong_option_gets_a_sentence(project: Path, arguments: list[str], sentence: str) -> None:
    command = [sys.executable, "-m", "safeecgmatch.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and sentence in done.stderr and "Traceback" not in done.stderr
