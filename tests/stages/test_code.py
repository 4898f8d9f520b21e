"""Stage `code`: the fingerprint holds what a cell imports and the switches in force, and nothing of other methods."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml

from safeecgmatch.files import read_json
from tests.conftest import ROOT
from tests.test_graph import HARMLESS, imported_by


def fingerprint(folder, method: str, protocol: str = "paper") -> dict:
    params = yaml.safe_load((ROOT / "params.yaml").read_text()) | {"protocol": protocol}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    subprocess.run([sys.executable, str(ROOT / "stages" / "code.py")], cwd=folder, check=True)
    return read_json(folder / "data" / "code" / f"{method}.json")


def test_it_lists_the_engine_the_method_and_no_other(tmp_path):
    files = set(fingerprint(tmp_path, "fixmatch")["files"])
    methods = "src/safeecgmatch/methods"
    assert {"stages/train.py", "src/safeecgmatch/training/loop.py", f"{methods}/fixmatch.py"} <= files
    assert f"{methods}/supervised.py" not in files and not any("tracking" in name for name in files)


@pytest.mark.parametrize("method", ["openmatch", "safeecgmatch", "complematch"])
def test_it_lists_everything_that_is_imported(tmp_path, method):
    listed = set(fingerprint(tmp_path, method)["files"])
    imported = {f"src/safeecgmatch/{name}.py" for name in imported_by(method) - HARMLESS}
    assert imported <= listed
    assert not listed & {f"src/safeecgmatch/{name}.py" for name in HARMLESS}


@pytest.mark.parametrize(("protocol", "module"), [("paper", "ecgmatch"), ("release", "release/ecgmatch")])
def test_the_protocol_decides_for_file_and_switches(tmp_path, protocol, module):
    content = fingerprint(tmp_path, "ecgmatch", protocol)
    assert f"src/safeecgmatch/methods/{module}.py" in content["files"]
    assert content["switches"]["module"] == module.replace("/", ".")


def test_bad_params_are_one_sentence(tmp_path):
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text() + "colour: blue\n")
    script = str(ROOT / "stages" / "code.py")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "colour" in done.stderr and "Traceback" not in done.stderr
