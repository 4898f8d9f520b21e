"""Writes tables/, figures/, README.md and report.html of a study from what `evaluate` left; nothing else is read."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from safeecgmatch.config import Params
from safeecgmatch.errors import UserError
from safeecgmatch.files import atomic_path, write_text
from safeecgmatch.profiles import FOLDER
from safeecgmatch.reporting import sections
from safeecgmatch.reporting.audits import Finding, audit_findings
from safeecgmatch.reporting.catalogue import build_tables
from safeecgmatch.reporting.checks import read_study
from safeecgmatch.reporting.compare import CSV, compare, comparison_markdown, comparison_tex
from safeecgmatch.reporting.deviations import Deviation, deviations
from safeecgmatch.reporting.figures import write_figures
from safeecgmatch.reporting.page import heading, numbers, to_html, to_readme
from safeecgmatch.reporting.printing import render, tex, to_markdown, to_tex
from safeecgmatch.reporting.provenance import provenance, variant_note
from safeecgmatch.reporting.results import Results
from safeecgmatch.reporting.rows import methods
from safeecgmatch.reporting.tables import Table
from safeecgmatch.reporting.verdicts import (
    Judgement,
    claims_frame,
    evidence_frame,
    forest_frame,
    judge,
    notes,
    over_settings_frame,
)

BIBLIOGRAPHY = Path(__file__).with_name("references.bib")
PLOTS = ("corpus", "sources", "budget", "training", "reliability", "roc", "refusal", "confusion")
LISTED = ["setting", "ours", "paper", "why", "meaning"]  # of a deviation
FEWEST_SETTINGS = 4  # the middle half of fewer is no half


@dataclass(frozen=True)
class Content:
    """All that the pages print."""

    params: Params
    runs: pd.DataFrame
    tables: list[Table]
    comparison: pd.DataFrame
    judgements: list[Judgement]
    fixed: list[str]
    findings: list[Finding]
    differences: list[Deviation]
    over_settings: pd.DataFrame
    plots: dict[str, pd.DataFrame]
    figures: list[str]

    @property
    def title(self) -> str:
        return f"SafeECGMatch, study `{self.params.profile}`, protocol `{self.params.protocol}`"


def read_csv(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise UserError(f"{path} does not exist; run `dvc repro evaluate` first.")
    return pd.read_csv(path)


def bibliography() -> list[dict[str, str]]:
    """The entries of references.bib, which keeps one field per line, ready for thebibliography."""
    entries = []
    for key, body in re.findall(r"@\w+\{([^,]+),\n(.*?)\n\}", BIBLIOGRAPHY.read_text(encoding="utf-8"), re.DOTALL):
        fields = dict(re.findall(r"^\s*(\w+)=\{(.*)\},?$", body, re.MULTILINE))
        venue = fields.get("booktitle") or fields["journal"]
        author = fields["author"].replace(" and others", " et al").replace(" and ", "; ")
        entries.append({"key": key, "author": author, "title": fields["title"], "venue": venue, "year": fields["year"]})
    return entries


def page(content: Content) -> list[str]:
    """What was run, the verdicts, the gains, then everything else."""
    params, runs = content.params, content.runs
    parts = [
        *sections.what_was_run(params, runs, content.differences),
        sections.FILES,
        heading("Claims"),
        *sections.claims_table(content.judgements, content.fixed),
        sections.forest(params, content.figures),
        heading("Audit of the published numbers"),
        "These findings need no training: they follow from the paper's own tables.",
        *sections.audit(content.findings),
        heading("Deviations from the paper's setting"),
        *sections.deviation_table(content.differences),
    ]
    for table in content.tables:
        parts += [heading(f"Table {table.number}: {table.title}"), numbers(table)]
    return [
        *parts,
        *sections.over_settings(params, content.over_settings),
        *sections.source_blocks(params, content.plots["corpus"], content.plots["sources"]),
        heading("Paper versus ours"),
        *sections.against_the_paper(params, content.comparison),
        heading("Figures"),
        *sections.overview_figures(params, content.figures),
        *sections.figures_by_setting(params, content.figures),
        heading("Cost"),
        sections.cost(params, runs),
        heading("Sizes of the splits"),
        sections.sizes(params, runs, content.plots["corpus"]),
        heading("Hyper-parameters and protocol switches"),
        sections.settings_of_methods(params),
    ]


def write_tables(folder: Path, content: Content) -> None:
    """Each table as .tex, .md and .csv, all in appendix.tex, paper versus ours, the claims, references.bib."""
    params, comparison = content.params, content.comparison
    for table in content.tables:
        (folder / f"{table.name}.tex").write_text(to_tex(table), encoding="utf-8")
        notes = "\n\n".join([f"{table.caption} {table.source}", to_markdown(table).rstrip(), *table.notes])
        (folder / f"{table.name}.md").write_text(f"{notes}\n", encoding="utf-8")
        table.frame().to_csv(folder / f"{table.name}.csv", index=False)
    source, remark = provenance(params, content.runs), variant_note(params, methods(params))
    (folder / "paper_vs_ours.tex").write_text(comparison_tex(comparison, source, remark), encoding="utf-8")
    (folder / "paper_vs_ours.md").write_text(comparison_markdown(comparison, source, remark), encoding="utf-8")
    comparison[CSV].to_csv(folder / "paper_vs_ours.csv", index=False)
    claims_frame(content.judgements).to_csv(folder / "claims.csv", index=False)
    evidence_frame(content.judgements).to_csv(folder / "claims_evidence.csv", index=False)
    content.over_settings.to_csv(folder / "over_settings.csv", index=False)
    pd.DataFrame(content.differences).reindex(columns=LISTED).to_csv(folder / "deviations.csv", index=False)
    shutil.copyfile(BIBLIOGRAPHY, folder / BIBLIOGRAPHY.name)
    title = tex(content.title.replace("`", ""))
    appendix = render("appendix.tex.j2", title=title, tables=content.tables, bibliography=bibliography(), tex=tex)
    (folder / "appendix.tex").write_text(appendix, encoding="utf-8")


def write_report(params: Params, folder: Path, profiles: Path = FOLDER) -> None:
    """Read what `evaluate` left in `folder`; write tables, figures and pages beside it."""
    plots = {name: read_csv(folder / "plots" / f"{name}.csv") for name in PLOTS}
    study = read_study(params, folder)
    params = study.params  # with the names of the corpora
    metrics, runs, contrasts = study.metrics, study.runs, study.contrasts
    tables = build_tables(params, metrics, runs, contrasts)
    with atomic_path(folder / "figures") as partial:
        partial.mkdir()
        names = write_figures(partial, params, Results(metrics, runs, contrasts), plots, forest_frame(study))
    differences, over_settings = deviations(params, profiles), over_settings_frame(study)
    content = Content(
        params,
        runs,
        tables,
        compare(tables, params, differences),
        judge(study),
        notes(study),
        audit_findings(),
        differences,
        over_settings[over_settings["settings"] >= FEWEST_SETTINGS],
        plots,
        names,
    )
    with atomic_path(folder / "tables") as partial:
        partial.mkdir()
        write_tables(partial, content)
    readme = to_readme([heading(content.title, 1), *page(content)])
    write_text(folder / "README.md", readme)
    write_text(folder / "report.html", to_html(readme, folder))
