from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from safeecgmatch.data.inventory import Entry
from safeecgmatch.data.manifest import write_manifest
from safeecgmatch.engine.splits import load_split
from safeecgmatch.engine.store import SignalStore
from safeecgmatch.files import read_json, sha256_of
from tests.conftest import ROOT
from tests.data.tiny import SUPERCLASS, write_cinc, write_ptbxl

DX = ["426783006", "164889003", "713427006", "111975006", "251146004"]


def write_params(project: Path, protocol: str = "paper", **split: Any) -> None:
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["protocol"] = protocol
    params["data"]["sampling_rate"] = 100
    for dataset in ("ptbxl", "cinc21"):
        params["data"][dataset].update(labels_per_class=2, pool_size=40)
    params["split"].update(split)
    (project / "params.yaml").write_text(yaml.safe_dump(params))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project folder with both archives, 60 records each, in place, and their manifests."""
    write_params(tmp_path)
    raw = tmp_path / "data" / "raw"
    codes = list(SUPERCLASS)
    rows = [(n, f"{{'{codes[n % 5]}': 100.0}}", f"records100/00000/{n:05d}_lr") for n in range(1, 61)]
    write_ptbxl(raw / "ptbxl", rows)
    for number in range(60):
        write_cinc(raw / "cinc21", f"E{number:02d}", DX[number % 5], number)
    for dataset in ("ptbxl", "cinc21"):
        folder = raw / dataset
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        entries = [Entry(file.relative_to(folder).as_posix(), file.stat().st_size, sha256_of(file)) for file in files]
        write_manifest(tmp_path / "data" / "manifests" / f"{dataset}.csv", entries)
    return tmp_path


def run(project: Path, stage: str, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("SAFEECGMATCH_DATA", "DVC_ROOT")}
    command = [sys.executable, str(ROOT / "stages" / f"{stage}.py"), *options]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)


def one_sentence(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def test_ptbxl_from_archive_to_split(project: Path) -> None:
    done = run(project, "filter", "--dataset", "ptbxl")
    assert done.returncode == 0, done.stderr
    assert "ptbxl: 60 of 60 records kept (CD 12, HYP 12, MI 12, NORM 12, STTC 12); dropped: none" in done.stdout
    assert "warning: ptbxl_database.csv has 60 rows" in done.stderr
    assert SignalStore.open(project / "data/filtered/ptbxl").preprocessing == "none"
    done = run(project, "split", "--dataset", "ptbxl", "--ood", "30", "--seed", "1")
    assert done.returncode == 0, done.stderr
    assert "labelled 6, pool 40" in done.stdout
    split = load_split(project / "data/splits/ptbxl/30/1")
    assert (len(split.labelled), len(split.pool), split.seen) == (6, 40, ("NORM", "MI", "CD"))


@pytest.mark.parametrize(
    ("protocol", "preprocessing", "rule"),
    [("paper", "ecgmatch", "fixed_volume"), ("release", "release", "fixed_split")],
)
def test_the_protocol_decides_for_cinc(project: Path, protocol: str, preprocessing: str, rule: str) -> None:
    write_params(project, protocol)
    done = run(project, "filter", "--dataset", "cinc21")
    assert done.returncode == 0, done.stderr
    store = SignalStore.open(project / "data/filtered/cinc21")
    assert (store.preprocessing, store.standardise) == (preprocessing, protocol == "paper")
    done = run(project, "split", "--dataset", "cinc21", "--ood", "60", "--seed", "1")
    assert done.returncode == 0, done.stderr
    assert read_json(project / "data/splits/cinc21/60/1/summary.json")["rule"] == rule


def test_filter_says_what_is_wrong_with_the_archive(project: Path) -> None:
    (project / "data/raw/ptbxl/records100/00000/00007_lr.dat").unlink()
    assert "00007_lr.dat is missing" in one_sentence(run(project, "filter", "--dataset", "ptbxl"))
    (project / "data/manifests/ptbxl.csv").unlink()
    assert "run `dvc repro -f download@ptbxl`" in one_sentence(run(project, "filter", "--dataset", "ptbxl"))
    assert "There is no dataset 'mimic'" in one_sentence(run(project, "filter", "--dataset", "mimic"))
    assert not (project / "data/filtered").exists()


def test_split_says_what_is_missing(project: Path) -> None:
    options = ("--dataset", "ptbxl", "--ood", "30", "--seed", "1")
    assert "run the filter stage of this dataset first" in one_sentence(run(project, "split", *options))
    assert not (project / "data/splits").exists()
