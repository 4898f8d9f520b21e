from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from safeecgmatch.data.manifest import read_manifest
from tests.conftest import ROOT
from tests.data.trees import AT_100_HZ, PTBXL, SIGNAL, write_tree


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project folder whose params point PTB-XL at a small mirror."""
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["data"]["sampling_rate"] = 100
    params["data"]["ptbxl"].update(source="path", path="mirror")
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    write_tree(tmp_path / "mirror", PTBXL)
    return tmp_path


def run(project: Path, dataset: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("SAFEECGMATCH_DATA", "DVC_ROOT")}
    command = [sys.executable, str(ROOT / "stages" / "download.py"), "--dataset", dataset]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)


def test_stage_writes_the_manifest(project: Path) -> None:
    done = run(project, "ptbxl")
    assert done.returncode == 0, done.stderr
    assert f"ptbxl: {len(AT_100_HZ)} files" in done.stdout
    assert [entry.file for entry in read_manifest(project / "data" / "manifests" / "ptbxl.csv")] == AT_100_HZ
    assert (project / "data" / "raw" / "ptbxl").resolve() == (project / "mirror").resolve()


def test_stage_fails_with_one_sentence(project: Path) -> None:
    (project / "mirror" / SIGNAL).unlink()
    done = run(project, "ptbxl")
    assert done.returncode == 1
    assert "00001_lr.dat is listed but missing" in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr
    assert not (project / "data" / "manifests" / "ptbxl.csv").exists()


def test_stage_knows_its_datasets(project: Path) -> None:
    done = run(project, "mimic")
    assert done.returncode == 1
    assert done.stderr == "there is no dataset 'mimic': use one of ptbxl, cinc21.\n"
