"""Writes tables/, figures/, README.md and report.html of a study from what `evaluate` left; nothing else is read."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from safeecgmatch.config import Params
from safeecgmatch.files import atomic_path, write_text
from safeecgmatch.reporting import sections
from safeecgmatch.reporting.catalogue import build_tables
from safeecgmatch.reporting.compare import CSV, compare, comparison_markdown, comparison_tex
from safeecgmatch.reporting.deviations import Deviation, deviations
from safeecgmatch.reporting.figures import Drawn, write_figures
from safeecgmatch.reporting.page import tables_of_results, to_html, to_readme
from safeecgmatch.reporting.printing import render, tex, to_markdown, to_tex
from safeecgmatch.reporting.provenance import provenance, variant_note
from safeecgmatch.reporting.rows import methods
from safeecgmatch.reporting.study import Study, read_study
from safeecgmatch.reporting.tables import Table
from safeecgmatch.reporting.verdicts import (
    Judgement,
    claims_frame,
    evidence_frame,
    judge,
    notes,
)

BIBLIOGRAPHY = Path(__file__).with_name("references.bib")
LISTED = ["setting", "ours", "paper", "why", "meaning"]  # of a deviation


def title(params: Params) -> str:
    return f"SafeECGMatch, study `{params.profile}`, protocol `{params.protocol}`"


def bibliography() -> list[dict[str, str]]:
    """The entries of references.bib, which keeps one field per line, ready for thebibliography."""
    entries = []
    for key, body in re.findall(r"@\w+\{([^,]+),\n(.*?)\n\}", BIBLIOGRAPHY.read_text(encoding="utf-8"), re.DOTALL):
        fields = dict(re.findall(r"^\s*(\w+)=\{(.*)\},?$", body, re.MULTILINE))
        venue = fields.get("booktitle") or fields["journal"]
        author = fields["author"].replace(" and others", " et al").replace(" and ", "; ")
        entries.append({"key": key, "author": author, "title": fields["title"], "venue": venue, "year": fields["year"]})
    return entries


def page(
    study: Study,
    tables: list[Table],
    comparison: pd.DataFrame,
    judgements: list[Judgement],
    differences: list[Deviation],
    figures: Mapping[str, Drawn],
) -> list[str]:
    """What was run, the verdicts, the gains, then everything else."""
    params, corpus = study.params, study.plots["corpus"]
    return [
        f"# {title(params)}",
        *sections.what_was_run(study, differences),
        sections.FILES,
        "## Claims",
        *sections.claims_table(judgements, notes(study)),
        sections.forest(figures),
        "## Audit of the published numbers",
        "These findings need no training: they follow from the paper's own tables.",
        sections.audit(),
        "## Deviations from the paper's setting",
        sections.deviation_table(differences),
        *tables_of_results(tables),
        *sections.source_blocks(params, corpus, study.plots["sources"]),
        "## Paper versus ours",
        *sections.against_the_paper(params, comparison),
        "## Figures",
        *sections.pictures(params, figures),
        "## Cost",
        sections.cost(params, study.runs),
        "## Sizes of the splits",
        sections.sizes(params, study.runs, corpus),
        "## Hyper-parameters and protocol switches",
        sections.settings_of_methods(params),
    ]


def write_tables(folder: Path, study: Study, tables: list[Table], comparison: pd.DataFrame) -> None:
    """Each table and the comparison with the paper as .tex, .md and .csv, and all tables in appendix.tex."""
    params = study.params
    for table in tables:
        (folder / f"{table.name}.tex").write_text(to_tex(table), encoding="utf-8")
        noted = "\n\n".join([f"{table.caption} {table.source}", to_markdown(table).rstrip(), *table.notes])
        (folder / f"{table.name}.md").write_text(f"{noted}\n", encoding="utf-8")
        table.frame().to_csv(folder / f"{table.name}.csv", index=False)
    source, remark = provenance(params, study.runs), variant_note(params, methods(params))
    (folder / "paper_vs_ours.tex").write_text(comparison_tex(comparison, source, remark), encoding="utf-8")
    (folder / "paper_vs_ours.md").write_text(comparison_markdown(comparison, source, remark), encoding="utf-8")
    comparison[CSV].to_csv(folder / "paper_vs_ours.csv", index=False)
    shutil.copyfile(BIBLIOGRAPHY, folder / BIBLIOGRAPHY.name)
    named = {"title": tex(title(params).replace("`", "")), "tables": tables, "bibliography": bibliography(), "tex": tex}
    (folder / "appendix.tex").write_text(render("appendix.tex.j2", **named), encoding="utf-8")


def write_report(params: Params, folder: Path) -> None:
    """Read what `evaluate` left in `folder`; write tables, figures and pages beside it."""
    study = read_study(params, folder)
    tables, judgements, differences = build_tables(study), judge(study), deviations(study.params)
    comparison = compare(tables, study.params, differences)
    with atomic_path(folder / "figures") as partial:
        partial.mkdir()
        figures = write_figures(partial, study)
    with atomic_path(folder / "tables") as partial:
        partial.mkdir()
        write_tables(partial, study, tables, comparison)
        for name, frame in {
            "claims": claims_frame(judgements),
            "claims_evidence": evidence_frame(judgements),
            "deviations": pd.DataFrame(differences).reindex(columns=LISTED),
        }.items():
            frame.to_csv(partial / f"{name}.csv", index=False)
    readme = to_readme(page(study, tables, comparison, judgements, differences, figures))
    write_text(folder / "README.md", readme)
    write_text(folder / "report.html", to_html(readme, folder))
