"""What a stage depends on of the code: everything that it imports, and nothing that a comment can change."""

from __future__ import annotations

import functools
import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from safeecgmatch import protocols
from safeecgmatch.config import Params, load_params
from safeecgmatch.engine import fingerprint
from safeecgmatch.engine.fingerprint import stage_of
from safeecgmatch.errors import UserError
from safeecgmatch.files import read_yaml
from safeecgmatch.protocols import switches
from tests.conftest import ROOT

SCRIPTS = ("download", "filter", "split", "evaluate", "tables")
GRAPH = read_yaml(ROOT / "dvc.yaml")["stages"]
# Imported by name while a stage runs: lines of their own in dvc.yaml.
OWN_LINES = ("safeecgmatch.data.datasets.", "safeecgmatch.data.phantom")


@functools.cache
def imported() -> dict[str, set[str]]:
    """For each script the modules of this package that are there when its own imports, late ones included, are done."""
    code = f"""
import ast, importlib, json, os, pathlib, sys
import matplotlib.pyplot, pandas, torch # once, not in every child
sys.path.insert(0, {str(ROOT / "src")!r})
for script in {SCRIPTS}:
    if os.fork():
        os.wait()
        continue
    waiting, seen = [pathlib.Path({str(ROOT / "stages")!r}, script + ".py").read_text()], set()
    while waiting:
        for node in ast.walk(ast.parse(waiting.pop())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("safeecgmatch"):
                module = importlib.import_module(node.module)
                for name in node.names:
                    if not hasattr(module, name.name):
                        importlib.import_module(node.module + "." + name.name)
        for name, module in list(sys.modules.items()):
            if name.startswith("safeecgmatch") and name not in seen and getattr(module, "__file__", None):
                seen.add(name)
                waiting.append(pathlib.Path(module.__file__).read_text())
    print(json.dumps(sorted(seen)), flush=True)
    os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {script: set(json.loads(line)) for script, line in zip(SCRIPTS, done.stdout.splitlines(), strict=True)}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_stage_depends_on_all_that_it_imports(script: str) -> None:
    found, names = stage_of(ROOT / "stages" / f"{script}.py"), imported()[script]
    empty = {name for name in names if not fingerprint.bare_code(fingerprint.source(name))}
    missing = {name for name in names - empty if not name.startswith(OWN_LINES)} - set(found)
    assert not missing
    assert f"{script}.py" in found


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_graph_names_the_file_and_nothing_of_the_sources_but_the_datasets(script: str) -> None:
    deps = [str(dep) for dep in GRAPH[script]["deps"]]
    assert f"data/code/stages/{script}.json" in deps
    own = [dep for dep in deps if dep.startswith("src/")]
    assert all(re.match(r"src/safeecgmatch/data/(datasets/|phantom$)", dep) for dep in own)
    assert ("src/safeecgmatch/data/datasets/${item.dataset}.py" in own) == (script in ("download", "filter", "split"))


def test_what_is_no_python_counts() -> None:
    tables, split = (set(stage_of(ROOT / "stages" / f"{name}.py")) for name in ("tables", "split"))
    assert {"safeecgmatch/reporting/names.yaml", "safeecgmatch/reporting/claims.yaml"} <= tables
    assert any(name.startswith("safeecgmatch/reporting/templates/") for name in tables)
    assert "safeecgmatch/data/protocol.yaml" in split and "safeecgmatch/reporting/names.yaml" not in split


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy") / "src"
    return shutil.copytree(ROOT / "src", folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))


@pytest.mark.parametrize(
    ("file", "edit", "changed"),
    [
        ("safeecgmatch/data/splits.py", lambda text: text + "\nEXTRA = 1\n", {"split"}),
        ("safeecgmatch/data/splits.py", lambda text: text + "\n# a remark\n", set()),
        ("safeecgmatch/metrics.py", lambda text: text + "\nEXTRA = 1\n", {"evaluate", "tables"}),
        ("safeecgmatch/reporting/names.yaml", lambda text: text + "\n", {"evaluate", "tables"}),
        ("safeecgmatch/data/datasets/ptbxl.py", lambda text: text + "\nEXTRA = 1\n", set()),
        ("safeecgmatch/files.py", lambda text: text + "\nEXTRA = 1\n", set(SCRIPTS)),
        ("safeecgmatch/launching/run.py", lambda text: text + "\nEXTRA = 1\n", set()),
    ],
)
def test_an_edit_reaches_the_stages_that_use_it(sources: Path, monkeypatch, file: str, edit, changed: set[str]) -> None:
    monkeypatch.setattr(fingerprint, "SOURCES", sources)
    before = {name: stage_of(ROOT / "stages" / f"{name}.py") for name in SCRIPTS}
    text = (sources / file).read_text(encoding="utf-8")
    (sources / file).write_text(edit(text), encoding="utf-8")
    after = {name: stage_of(ROOT / "stages" / f"{name}.py") for name in SCRIPTS}
    (sources / file).write_text(text, encoding="utf-8")
    assert {name for name in SCRIPTS if before[name] != after[name]} == changed


def lacking(**lacks: Any) -> tuple[Params, str, dict[str, Any]]:
    """What `check` is given for FixMatch, but for `lacks`."""
    params = load_params(ROOT / "params.yaml")
    found = fingerprint.method_of(params, "fixmatch") | {key: lacks[key] for key in lacks if key != "name"}
    return params, lacks.get("name", "fixmatch"), found


@pytest.mark.parametrize(
    ("lacks", "sentence"),
    [
        ({"module": "parts.losses"}, "methods/parts/losses.py names no subclass of Method as METHOD; add `METHOD ="),
        ({"module": "louder"}, "no method 'louder': src/safeecgmatch/methods/louder/method.py does not exist."),
        ({"switches": {}}, "methods/fixmatch/protocol.yaml, protocol paper: key 'batch_order' is missing."),
        ({"module": "adello", "switches": switches("adello", "paper", {})}, "params.yaml, methods.fixmatch: "),
        ({"name": "louder"}, "names.yaml has no name for the method 'louder'; add it under further_methods."),
    ],
)
def test_what_a_method_lacks_is_one_sentence(lacks: dict[str, Any], sentence: str) -> None:
    check = runpy.run_path(str(ROOT / "stages" / "code.py"))["check"]
    check(*lacking())
    with pytest.raises(UserError) as error:
        check(*lacking(**lacks))
    assert sentence in str(error.value) and "\n" not in str(error.value)


def test_a_method_without_protocol_is_known_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "PACKAGE", tmp_path)
    for name in ("louder/method.py", "parts/losses.py"):
        (tmp_path / "methods" / name).parent.mkdir(parents=True)
        (tmp_path / "methods" / name).touch()
    assert protocols.known_methods() == ["louder"]
    with pytest.raises(UserError, match=r"louder/protocol\.yaml does not exist; every method has its switches there"):
        protocols.read_protocol("louder")
