from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from safeecgmatch.cells import cells
from safeecgmatch.errors import UserError
from safeecgmatch.files import sha256_of
from safeecgmatch.reporting.evaluate import evaluate, write_evaluation
from safeecgmatch.reporting.report import bibliography, write_report
from tests.reporting.synthetic import make_params, write_cell

PARAMS = make_params(
    grid={"datasets": ["ptbxl"], "methods": ["supervised", "calimatch"], "ood_levels": [30, 60]},
    ablation={"datasets": ["ptbxl"]},
)
MISSING = "ptbxl/calimatch/60/2"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report")
    for cell in cells(PARAMS):
        if cell.path != MISSING:
            write_cell(cell, PARAMS, root, 60)
    write_evaluation(evaluate(PARAMS, root / "runs", root / "tracking"), root / "out")
    write_report(PARAMS, root / "out")
    return root / "out"


def test_all_files_are_there(report: Path) -> None:
    assert {path.name for path in report.iterdir()} == {
        "metrics.csv", "runs.csv", "headline.json", "plots", "tables", "figures", "README.md",
    }  # fmt: skip
    tables = {path.name for path in (report / "tables").iterdir()}
    for stem in ("table1_summary", "table2_ablation", "table3_benchmark", "table4_sensitivity", "paper_vs_ours"):
        assert {f"{stem}.tex", f"{stem}.md", f"{stem}.csv"} <= tables
    assert {"standalone.tex", "references.bib"} <= tables
    figures = {path.name for path in (report / "figures").iterdir()}
    stems = ["tradeoff"] + [f"{k}_ptbxl_{o}" for k in ("reliability", "training", "ood_scores") for o in (30, 60)]
    assert figures == {f"{stem}.{ending}" for stem in stems for ending in ("png", "pdf")}


def test_page_links_only_to_files_that_exist(report: Path) -> None:
    page = (report / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert len(links) > 10
    for link in links:
        assert (report / link).exists(), link
    assert MISSING in page and "generated" in page and "<<" not in page and "nan" not in page


def test_second_report_has_the_same_bytes(report: Path, tmp_path: Path) -> None:
    copy = tmp_path / "again"
    copy.mkdir()
    for name in ("metrics.csv", "runs.csv", "plots"):
        source = report / name
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, copy / name)
    write_report(PARAMS, copy)
    for path in sorted(copy.rglob("*")):
        if path.is_file():
            assert sha256_of(path) == sha256_of(report / path.relative_to(copy)), path.name


def test_every_citation_is_in_the_bibliography(report: Path) -> None:
    latex = "".join(path.read_text(encoding="utf-8") for path in (report / "tables").glob("*.tex"))
    cited = {key for keys in re.findall(r"\\cite\{([^}]+)\}", latex) for key in keys.split(",")}
    assert cited <= {entry["key"] for entry in bibliography()} and "wagner2020ptb" in cited
    assert len(bibliography()) == (report / "tables" / "references.bib").read_text(encoding="utf-8").count("\n@") + 1
    assert all(entry.values() for entry in bibliography())


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_standalone_document_compiles_without_undefined_references(report: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(report / "tables", tmp_path / "tables")
    for _ in range(2):
        done = subprocess.run(
            ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "standalone.tex"],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
        )
        assert done.returncode == 0, done.stdout[-2000:]
    assert (folder / "standalone.pdf").stat().st_size > 10_000
    assert "undefined" not in done.stdout and "Overfull" not in done.stdout


def test_tables_before_evaluate_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="dvc repro evaluate"):
        write_report(PARAMS, tmp_path)
