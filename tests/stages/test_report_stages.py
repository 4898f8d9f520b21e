from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from tests.conftest import ROOT
from tests.reporting.synthetic import make_params, write_study

PARAMS = make_params(
    grid={"datasets": ["ptbxl"], "methods": ["supervised"], "ood_levels": [60], "seeds": [1]},
    ablation={"datasets": []},
    sensitivity={"datasets": []},
    methods={"supervised": {"switches": {}}, "safeecgmatch": {"switches": {}}},
)


def run(stage: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "stages" / f"{stage}.py")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_evaluate_then_tables(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(PARAMS.model_dump()), encoding="utf-8")
    early = run("evaluate", tmp_path)
    assert early.returncode == 1 and "dvc repro" in early.stderr and "Traceback" not in early.stderr
    write_study(PARAMS, tmp_path, records=30)
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    for stage in ("evaluate", "tables"):
        done = run(stage, tmp_path)
        assert done.returncode == 0, done.stderr
    report = tmp_path / "reports" / "demo" / "paper"
    assert {path.name for path in report.iterdir()} - {"report.pdf"} == {
        "metrics.csv", "runs.csv", "contrasts.csv", "ranks.csv", "headline.json", "plots", "tables", "figures",
        "README.md", "report.html", "report.tex",
    }  # fmt: skip


def test_stages_are_thin() -> None:
    for stage in ("evaluate", "tables"):
        assert len((ROOT / "stages" / f"{stage}.py").read_text(encoding="utf-8").splitlines()) <= 60
