"""The stages download, filter and split as DVC runs them, on tiny archives in a project folder of their own."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from safeecgmatch.engine.signal_store import SignalStore
from safeecgmatch.engine.split_files import load_split
from safeecgmatch.files import read_json
from tests.conftest import ROOT
from tests.data.tiny import SUPERCLASS, waves, write_cinc, write_csv, write_ptbxl, write_record

DX = ["426783006", "164889003", "713427006", "111975006", "251146004"]


def write_params(project: Path, protocol: str = "paper", **datasets: str) -> None:
    """The demo's params with these datasets (name=folder), read in place."""
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["protocol"] = protocol
    lists = [params[section] for section in ("grid", "ablation", "variants", "sensitivity")]
    for section in [*lists, *params["arms"].values()]:
        section["datasets"] = list(datasets)
    sections = {
        name: {"source": "path", "path": path, "labels_per_class": 2, "pool_size": 40}
        for name, path in datasets.items()
    }
    params["data"] = {"sampling_rate": 100, "phantom": {"records": 40, "seed": 7}, "switches": {}, **sections}
    (project / "params.yaml").write_text(yaml.safe_dump(params))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a project with a mirror of both datasets, 60 records each."""
    for name in ("SAFEECGMATCH_DATA", "DVC_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    write_params(tmp_path, ptbxl="mirror/ptbxl", cinc21="mirror/cinc21")
    codes = list(SUPERCLASS)
    rows = [(n, f"{{'{codes[n % 5]}': 100.0}}", f"records100/00000/{n:05d}_lr") for n in range(1, 61)]
    write_ptbxl(tmp_path / "mirror" / "ptbxl", rows)
    for number in range(60):
        write_cinc(tmp_path / "mirror" / "cinc21", f"E{number:02d}", DX[number % 5], number)
    return tmp_path


def run(*stages: str, dataset: str = "ptbxl") -> None:
    for stage in stages:
        main = runpy.run_path(str(ROOT / "stages" / f"{stage}.py"))["main"]
        main(dataset, ood=60, seed=1, arm="") if stage == "split" else main(dataset)


def one_sentence(stage: str, dataset: str = "ptbxl") -> str:
    with pytest.raises(SystemExit) as end:
        run(stage, dataset=dataset)
    assert isinstance(end.value.code, str) and "\n" not in end.value.code
    return end.value.code


def test_ptbxl_from_archive_to_split(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("download", "filter", "split")
    printed = capsys.readouterr()
    assert "ptbxl: 122 files" in printed.out
    assert "60 of 60 records kept (CD 12, HYP 12, MI 12, NORM 12, STTC 12); dropped: none" in printed.out
    assert "warning: ptbxl_database.csv has 60 rows" in printed.err
    assert "labelled 6, pool 40" in printed.out
    assert (project / "data/manifests/ptbxl.csv").read_text().startswith("# folder: mirror/ptbxl\n")
    assert SignalStore.open(project / "data/filtered/ptbxl").preprocessing == "none"
    split = load_split(project / "data/splits/ptbxl/60/1")
    assert (len(split.labelled), len(split.pool), split.seen) == (6, 40, ("NORM", "MI", "CD"))


def test_split_warns_of_a_pool_of_repeats_and_knows_no_patients(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("download", "filter", "split", dataset="cinc21")
    assert "warning" not in capsys.readouterr().err
    params = yaml.safe_load((project / "params.yaml").read_text())
    params["data"]["cinc21"]["pool_size"] = 500
    (project / "params.yaml").write_text(yaml.safe_dump(params))
    run("split", dataset="cinc21")
    printed = capsys.readouterr()
    assert "of the pool's 500 records are repeats" in printed.err
    assert "patients are unknown" in printed.out and "0 patients" not in printed.out


@pytest.mark.parametrize(
    ("protocol", "preprocessing", "rule"),
    [("paper", "ecgmatch", "fixed_volume"), ("release", "release", "fixed_split")],
)
def test_the_protocol_decides_for_cinc(project: Path, protocol: str, preprocessing: str, rule: str) -> None:
    write_params(project, protocol, cinc21="mirror/cinc21")
    run("download", "filter", "split", dataset="cinc21")
    store = SignalStore.open(project / "data/filtered/cinc21")
    assert (store.preprocessing, store.standardise) == (preprocessing, protocol == "paper")
    assert read_json(project / "data/splits/cinc21/60/1/summary.json")["rule"] == rule


def test_a_fault_is_one_sentence_and_leaves_nothing(project: Path) -> None:
    assert "run `dvc repro -f download@ptbxl`" in one_sentence("filter")
    run("download")
    (project / "mirror/ptbxl/records100/00000/00007_lr.dat").unlink()
    assert "00007_lr.dat is missing" in one_sentence("filter")
    assert "run the filter stage of this dataset first" in one_sentence("split")
    (project / "mirror/ptbxl/scp_statements.csv").unlink()
    assert "has no scp_statements.csv" in one_sentence("download")
    for stage in ("download", "filter", "split"):
        assert "data.mimic is missing" in one_sentence(stage, "mimic")
    assert not list((project / "data").glob("[mfs]*/*"))


@pytest.mark.parametrize(
    ("dataset", "file"),
    [
        ("ptbxl", "records100/00000/00007_lr.dat"),
        ("ptbxl", "records100/00000/00007_lr.hea"),
        ("ptbxl", "ptbxl_database.csv"),
        ("cinc21", "training/georgia/g1/E07.mat"),
        ("cinc21", "training/georgia/g1/E07.hea"),
    ],
)
def test_filter_reads_no_file_that_has_changed_since_it_was_verified(project: Path, dataset: str, file: str) -> None:
    run("download", dataset=dataset)
    path = project / "mirror" / dataset / file
    content = bytearray(path.read_bytes())
    content[-3:-1] = content[-2:-4:-1] if content[-3] != content[-2] else b"~~"  # two bytes, the same size
    path.write_bytes(content)
    sentence = one_sentence("filter", dataset)
    assert f"{path.name} has changed since `download` verified it: run `dvc repro -f download@{dataset}`" in sentence
    assert not (project / "data/filtered").exists() or not list((project / "data/filtered").iterdir())


def test_filter_reads_where_the_manifest_says_and_never_downloads(project: Path) -> None:
    """DVC restores what an earlier run wrote without running `download`: here the manifest of an earlier source."""
    manifest, signals = project / "data/manifests/ptbxl.csv", project / "data/filtered/ptbxl/signals.npy"
    shutil.copytree(project / "mirror/ptbxl", project / "other")
    write_record(project / "other/records100/00000/00007_lr.hea", waves(99, 1000))
    run("download", "filter")
    restored, wanted = manifest.read_bytes(), signals.read_bytes()
    write_params(project, ptbxl="other")
    run("download", "filter")
    assert signals.read_bytes() != wanted
    manifest.write_bytes(restored)
    run("filter")
    assert signals.read_bytes() == wanted
    assert not (project / "data/raw").exists()
    (project / "mirror").rename(project / "away")
    assert "is missing (No such file or directory): run `dvc repro -f download@ptbxl`" in one_sentence("filter")


def test_the_steps_of_contributing_add_a_dataset(project: Path) -> None:
    """The module that CONTRIBUTING.md prints, put where it says, and an archive of 60 records."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    [module] = re.findall(r"```python\n(.+?)```", text.partition("## Adding a dataset")[2], re.DOTALL)
    for folder in ("src", "stages"):
        shutil.copytree(ROOT / folder, project / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (project / "src/safeecgmatch/data/datasets/clinic.py").write_text(module)
    labels = ["NORM", "AF", "LBBB", "PACED"]
    rows = [(f"c{n:02d}", n // 2, labels[n % 4]) for n in range(60)]
    write_csv(project / "clinic/labels.csv", ["record", "patient", "label"], [*rows, ("../x", 1, "AF")])
    for number, (record, _, _) in enumerate(rows):
        write_record(project / f"clinic/records/{record}.hea", waves(number, 1000))
    write_params(project, clinic="clinic")
    printed = ""
    for stage, *options in (["download"], ["filter"], ["split", "--ood", "60", "--seed", "1"]):
        command = [sys.executable, f"stages/{stage}.py", "--dataset", "clinic", *options]
        printed += subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert "clinic: 121 files" in printed and "60 of 61 records kept" in printed
    assert "dropped: unsafe name 1" in printed
    split = load_split(project / "data/splits/clinic/60/1")
    assert (split.seen, split.unseen, len(split.pool)) == (("NORM", "AF", "LBBB"), ("PACED",), 40)
