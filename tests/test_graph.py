"""dvc.yaml: what each stage depends on."""

from __future__ import annotations

import subprocess
import sys

import yaml

from tests.conftest import ROOT

STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]


def test_every_cell_depends_on_its_methods_fingerprint():
    assert "data/code/${item.method}.json" in STAGES["train"]["deps"]
    assert "data/code/safeecgmatch.json" in STAGES["train_safeecgmatch"]["deps"]
    assert {"src/safeecgmatch/engine", "src/safeecgmatch/methods"} <= set(STAGES["code"]["deps"])
    assert {"protocol", "methods"} <= set(STAGES["code"]["params"])


def test_the_three_stages_of_safeecgmatch_have_the_same_code():
    assert STAGES["train_ablation"]["deps"] == STAGES["train_safeecgmatch"]["deps"]
    assert STAGES["train_sensitivity"]["deps"] == STAGES["train_safeecgmatch"]["deps"]


def test_only_safeecgmatch_depends_on_the_weight_of_the_frequency_branch():
    with_weight = [name for name, stage in STAGES.items() if "lambda_sum" in stage.get("params", [])]
    assert with_weight == ["train_safeecgmatch", "evaluate", "tables"]


def test_a_process_that_trains_imports_no_heavy_library():
    script = "import sys; import safeecgmatch.launching.cell; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"pandas", "sklearn", "matplotlib", "mlflow", "scipy", "wfdb"}
