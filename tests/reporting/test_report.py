from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from safeecgmatch.cells import cells
from safeecgmatch.config import Params
from safeecgmatch.errors import UserError
from safeecgmatch.files import sha256_of
from safeecgmatch.reporting.evaluate import evaluate, write_evaluation
from safeecgmatch.reporting.report import bibliography, write_report
from tests.conftest import ROOT
from tests.reporting.synthetic import BASELINES, make_params, paper_params, write_cell

PARAMS = make_params(
    grid={"datasets": ["ptbxl"], "methods": ["supervised", "calimatch"], "ood_levels": [30, 60]},
    ablation={"datasets": ["ptbxl"]},
)
MISSING = "ptbxl/calimatch/60/2"
NEEDS_LATEX = pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
READ = ("metrics.csv", "runs.csv", "contrasts.csv", "plots")


def make_report(root: Path, params: Params, missing: str = "", records: int = 60) -> Path:
    for cell in cells(params):
        if cell.path != missing:
            write_cell(cell, params, root, records)
    write_evaluation(evaluate(params, root / "runs", root / "tracking"), root / "out")
    write_report(params, root / "out")
    return root / "out"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_report(tmp_path_factory.mktemp("report"), PARAMS, MISSING)


def test_all_files_are_there(report: Path) -> None:
    written = {path.name for path in report.iterdir()}
    assert written == {*READ, "draws.csv.gz", "headline.json", "tables", "figures", "README.md", "report.html"}
    tables = {path.name for path in (report / "tables").iterdir()}
    for stem in ("table1_summary", "table2_ablation", "table3_benchmark", "table4_sensitivity", "paper_vs_ours"):
        assert {f"{stem}.tex", f"{stem}.md", f"{stem}.csv"} <= tables
    assert {"references.bib", "appendix.tex", "claims.csv", "claims_evidence.csv", "deviations.csv"} <= tables
    figures = {path.name for path in (report / "figures").iterdir()}
    kinds = ("reliability", "budget", "training", "confusion")
    stems = [
        "forest",
        "readings",
        "tradeoff",
        "purity",
        "refusal",
        "roc",
        *(f"{k}_ptbxl_{o}" for k in kinds for o in (30, 60)),
    ]
    assert figures == {f"{stem}.{ending}" for stem in stems for ending in ("png", "pdf")}


def test_page_opens_with_what_was_run_then_the_claims(report: Path) -> None:
    text = (report / "README.md").read_text(encoding="utf-8")
    order = ["generated", "Data:", "Size:", "Hardware:", "Versions:", "## Claims", "forest.png", "## Audit", "## Dev",
             "## Table 1", "## Table 9", "## Paper versus ours", "## Figures", "## Cost"]  # fmt: skip
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)
    assert MISSING in text and "<<" not in text and " nan" not in text
    verdicts = pd.read_csv(report / "tables" / "claims.csv").set_index("id")["verdict"]
    by_runs = verdicts.drop(["C3"])  # the paper's own numbers decide that one
    assert set(by_runs) == {"not tested"}, by_runs.to_dict()


def test_page_links_only_to_files_that_exist(report: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", (report / "README.md").read_text(encoding="utf-8"))
    assert len(links) > 15
    for link in links:
        assert (report / link).exists(), link


@pytest.mark.slow
def test_a_study_of_one_cell_has_a_report(tmp_path: Path) -> None:
    params = paper_params(grid={"methods": ["supervised", "tstfc"], "datasets": ["ptbxl"]}, ablation={"datasets": []})
    write_cell(cells(params)[0], params, tmp_path, 40)
    write_evaluation(evaluate(params, tmp_path / "runs", tmp_path / "tracking"), tmp_path / "out")
    write_report(params, tmp_path / "out")
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert f"1 of {len(cells(params))} cells; missing: " in text
    assert "| SafeECGMatch (fitted, fused) | 60 % | – | – |" in text


class Outline(HTMLParser):
    """What an HTML page holds, and whether its elements are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.count: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_one_file_that_fetches_nothing(report: Path) -> None:
    text = (report / "report.html").read_text(encoding="utf-8")
    outline = Outline()
    outline.feed(text)
    assert not outline.open and outline.count["img"] == 14 and outline.count["table"] > 12
    assert not re.search(r"https?://", text.split("<body>")[0]) and "@import" not in text
    for source in outline.sources:
        assert source.startswith(("data:image/png;base64,", "#")) or (report / source).exists(), source[:80]


@pytest.mark.slow
def test_second_report_has_the_same_bytes_at_another_commit(report: Path, tmp_path: Path) -> None:
    copy = tmp_path / "again"
    copy.mkdir()
    for name in READ:
        source = report / name
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, copy / name)
    runs = (copy / "runs.csv").read_text()
    (copy / "runs.csv").write_text(runs.replace("0123456789abcdef", "fedcba9876543210"))
    write_report(PARAMS, copy)
    changed = {
        path.relative_to(copy).as_posix()
        for path in copy.rglob("*")
        if path.is_file() and sha256_of(path) != sha256_of(report / path.relative_to(copy))
    }
    assert changed == {"runs.csv", "README.md", "report.html"}  # they name the commit


def test_every_citation_is_in_the_bibliography(tmp_path: Path) -> None:
    assert all(entry.values() for entry in bibliography())
    source = (ROOT / "src/safeecgmatch/reporting/references.bib").read_text(encoding="utf-8")
    assert len(bibliography()) == source.count("\n@") + 1
    names = (ROOT / "src/safeecgmatch/reporting/names.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"cite: (\w+)", names)) <= {entry["key"] for entry in bibliography()}


def compiled(folder: Path, document: str) -> str:
    (folder / "try.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "try.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def large_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both datasets, real, all methods and variants: the widest and longest tables that there are."""
    variants = ["no_freq_cal", "no_cal", "learned_t", "two_time", "coupled", "log_spectrum"]
    params = paper_params(grid={"methods": BASELINES, "seeds": [1, 2]}, ablation={"variants": variants})
    return make_report(tmp_path_factory.mktemp("large"), params, records=40)


@pytest.mark.slow
@NEEDS_LATEX
@pytest.mark.parametrize("document_class", ["{article}", "[sigconf]{acmart}"])
def test_each_table_compiles_alone(large_report: Path, tmp_path: Path, document_class: str) -> None:
    if "acmart" in document_class:
        found = subprocess.run(["kpsewhich", "acmart.cls", "binhex.tex"], capture_output=True, text=True).stdout
        if len(found.split()) < 2:
            pytest.skip("the class acmart, or what it needs, is not installed")
    folder = shutil.copytree(large_report / "tables", tmp_path / "tables")
    for table in sorted((large_report / "tables").glob("[tp]*.tex")):
        people = r"\author{A}" + (r"\affiliation{\institution{I}\country{C}}" if "acmart" in document_class else "")
        text = (
            rf"\documentclass{document_class}\usepackage{{booktabs,multirow,adjustbox}}\begin{{document}}"
            rf"\title{{T}}{people}\maketitle Text.\input{{{table.stem}}}\end{{document}}"
        )
        log = compiled(folder, text)
        overfull = [float(points) for points in re.findall(r"Overfull \\[hv]box \(([\d.]+)pt", log)]
        assert max(overfull, default=0.0) <= 5, table.name
        assert "Float too large" not in log, table.name


def test_the_appendix_has_the_papers_tables_first(report: Path) -> None:
    text = (report / "tables" / "appendix.tex").read_text(encoding="utf-8")
    names = re.findall(r"\\input\{(.+?)\}", text)
    assert [name.split("_")[0] for name in names[:4]] == ["table1", "table2", "table3", "table4"]
    assert set(names) == {path.stem for path in (report / "tables").glob("table*.tex")}
    numbers = re.findall(r"\\thetable\}\{(.+?)\}", text)  # whatever tables are missing, the numbers are the page's
    assert [f"table{number}" for number in numbers] == [name.split("_")[0] for name in names]
    page = (report / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^## Table (\w+):", page, re.MULTILINE) == numbers


@pytest.mark.slow
@NEEDS_LATEX
def test_the_appendix_compiles_alone(large_report: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(large_report / "tables", tmp_path / "tables")
    log = compiled(folder, (folder / "appendix.tex").read_text(encoding="utf-8"))
    overfull = [float(points) for points in re.findall(r"Overfull \\hbox \(([\d.]+)pt", log)]
    assert max(overfull, default=0.0) <= 5


def test_tables_before_evaluate_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="dvc repro evaluate"):
        write_report(PARAMS, tmp_path)
