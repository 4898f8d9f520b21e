"""dvc.yaml: a cell depends on all the code that can change its numbers, and on no other method."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from safeecgmatch.config import known_methods, read_protocols
from stages import code
from tests.conftest import ROOT

STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
HARMLESS = {name.replace(".", "/") for name in code.HARMLESS}


def imported_by(module: str) -> set[str]:
    """Our own modules that a training process of this method loads, as paths below the package."""
    script = (
        "import json, sys; import safeecgmatch.training.session; "
        f"import safeecgmatch.methods.{module}; "
        "print(json.dumps([m.__file__ for n, m in sys.modules.items() if n.startswith('safeecgmatch') and m.__file__]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    package = ROOT / "src" / "safeecgmatch"
    names = {str(Path(name).relative_to(package).with_suffix("")) for name in json.loads(done.stdout)}
    return {name for name in names if not name.endswith("__init__")}


def modules_of(method: str) -> set[str]:
    entry = read_protocols()[method].get("module", {"paper": method, "release": method})
    return {entry["paper"], entry["release"]}


@pytest.mark.parametrize("method", known_methods())
def test_every_import_of_a_cell_is_a_dependency(method):
    listed = [dep for dep in STAGES["code"]["deps"] if dep.startswith("src/")]
    covered = [dep.removeprefix("src/safeecgmatch/").removesuffix(".py") for dep in listed]
    for module in modules_of(method):
        for name in imported_by(module) - HARMLESS:
            assert any(name == dep or name.startswith(f"{dep}/") for dep in covered), f"{method} imports {name}"


def test_every_cell_depends_on_its_methods_fingerprint():
    assert "data/code/${item.method}.json" in STAGES["train"]["deps"]
    assert "data/code/safeecgmatch.json" in STAGES["train_safeecgmatch"]["deps"]
    assert "stages/train.py" in STAGES["code"]["deps"] and "protocol" in STAGES["code"]["params"]


def test_the_three_stages_of_safeecgmatch_have_the_same_code():
    assert STAGES["train_ablation"]["deps"] == STAGES["train_safeecgmatch"]["deps"]
    assert STAGES["train_sensitivity"]["deps"] == STAGES["train_safeecgmatch"]["deps"]


def test_only_safeecgmatch_depends_on_the_weight_of_the_frequency_branch():
    with_weight = [name for name, stage in STAGES.items() if "lambda_sum" in stage.get("params", [])]
    assert with_weight == ["train_safeecgmatch", "evaluate", "tables"]


def test_a_process_that_trains_imports_no_heavy_library():
    script = "import sys; import safeecgmatch.training.session; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"pandas", "sklearn", "matplotlib", "mlflow", "scipy", "wfdb"}
