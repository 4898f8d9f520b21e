"""What a cell's numbers depend on: the engine and its own method, without comments, and nothing of other methods."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from safeecgmatch.cells import Cell
from safeecgmatch.engine import fingerprint
from safeecgmatch.engine.fingerprint import bare_code, code_of, resolve
from safeecgmatch.errors import UserError
from safeecgmatch.protocols import known_methods, method_module, read_protocol
from tests.conftest import ROOT
from tests.methods.harness import demo_params, phantom_store, split_data

CODE = '''"""A module."""

THRESHOLD = 0.95  # FixMatch's


def accept(confidence):
    """Whether it passes."""
    # both bounds count
    text = "# no comment"

    return confidence >= THRESHOLD, text
'''


def modules() -> list[str]:
    entries = {name: read_protocol(name).get("module", {"paper": name}) for name in known_methods()}
    return sorted({entry[side] for entry in entries.values() for side in ("paper", "release") if side in entry})


def imported(names: list[str]) -> dict[str, set[str]]:
    """For every method, our own modules of the deciding folders that a process that trains it has loaded."""
    script = """
import importlib, json, os, sys
import safeecgmatch.engine.assembly
for name in sys.argv[1:]:
    if os.fork() == 0:
        importlib.import_module(name)
        ours = {name: module.__file__ for name, module in sys.modules.items() if name.startswith("safeecgmatch.")}
        print(json.dumps([name for name in ours if not ours[name].endswith("__init__.py")]), flush=True)
        os._exit(0)
    os.wait()
"""
    command = [sys.executable, "-c", script, *map(method_module, names)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {
        name: {found for found in json.loads(line) if found.startswith(fingerprint.DECIDING)}
        for name, line in zip(names, lines, strict=True)
    }


def test_it_counts_all_that_is_imported_from_the_deciding_folders():
    assert imported(modules()) == {module: set(code_of(module)) for module in modules()}


@pytest.mark.parametrize("module", modules())
def test_it_counts_the_engine_the_method_and_what_it_is_built_on(module):
    counted = set(code_of(module))
    assert {"safeecgmatch.engine.loop", "safeecgmatch.engine.method", method_module(module)} <= counted
    assert all(name.startswith(fingerprint.DECIDING) for name in counted)


def test_it_counts_no_other_method():
    assert not any("supervised" in name or "calimatch" in name for name in code_of("fixmatch"))
    assert "safeecgmatch.methods.calimatch.method" in code_of("safeecgmatch")
    assert "safeecgmatch.methods.parts.calibration" not in code_of("supervised")


def test_comments_docstrings_and_blank_lines_do_not_count():
    edited = CODE.replace("A module.", "Another\ntext.").replace("both bounds", "nothing").replace("  # FixMatch's", "")
    assert bare_code(edited.replace("\n\n    return", "\n    return")) == bare_code(CODE)


@pytest.mark.parametrize(
    ("old", "new"), [("0.95", "0.9"), (">=", ">"), ("# no comment", "# a comment"), ("    text", "    test")]
)
def test_anything_else_counts(old, new):
    assert bare_code(CODE.replace(old, new)) != bare_code(CODE)


def test_the_engine_knows_no_file_outside_its_folders_that_decides():
    """A module of the deciding folders may import others of the package only where those cannot change a number."""
    allowed = {"config", "errors", "files", "leads", "predictions", "protocols", "cells"}
    for folder in ("engine", "methods"):
        for file in Path(ROOT, "src", "safeecgmatch", folder).rglob("*.py"):
            for name in fingerprint.imports_of(file.read_text()):
                parts = name.split(".")
                if parts[0] == "safeecgmatch" and len(parts) > 1:
                    assert parts[1] in {"engine", "methods", *allowed}, f"{file} imports {name}"


def resolved(**changes) -> dict:
    data = split_data(phantom_store("ptbxl"), "ptbxl", 60, 1)
    return resolve(demo_params(**changes), Cell("ptbxl", "fixmatch", 60, 1), data)


def test_a_whole_number_counts_alike_with_and_without_its_point():
    whole, real = ({"fixmatch": {"lambda_u": value, "switches": {"paper": {"ramp": value}}}} for value in (2, 2.0))
    assert resolved(methods=whole)["fingerprint"] == resolved(methods=real)["fingerprint"]


def test_it_counts_every_value_of_the_cell_and_no_other():
    first = resolved()
    assert resolved(methods={"openmatch": {"lambda_em": 3.0}}) == first
    for changes in (
        {"methods": {"fixmatch": {"threshold": 0.9}}},
        {"methods": {"fixmatch": {"switches": {"paper": {"ramp": 7}}}}},
        {"iterations": 100},
        {"width": 4},
    ):
        assert resolved(**changes)["fingerprint"] != first["fingerprint"]


def test_code_counts_in_the_fingerprint_alone(monkeypatch):
    first = resolved()
    monkeypatch.setattr(fingerprint, "code_of", lambda _: {"edited": "0"})
    assert resolved()["config_hash"] == first["config_hash"]
    assert resolved()["fingerprint"] != first["fingerprint"]


def test_missing_data_are_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"store.json is missing: run the filter stage of ptbxl/fixmatch/60/1 first"):
        resolve(demo_params(), Cell("ptbxl", "fixmatch", 60, 1), tmp_path)


def test_bad_params_are_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text() + "colour: blue\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "stages" / "code.py"))["main"]()
    assert "colour" in end.value.code and "\n" not in end.value.code
