"""Writes tables/, figures/ and README.md of a study from what `evaluate` left; nothing else is read."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pandas as pd

from safeecgmatch.config import Params
from safeecgmatch.errors import UserError
from safeecgmatch.files import atomic_path, write_text
from safeecgmatch.progress import duration
from safeecgmatch.reporting.compare import (
    RULE,
    ColumnComparison,
    compare,
    comparison_frame,
    gains_over,
    proposed_ranks,
)
from safeecgmatch.reporting.compare_render import (
    comparison_markdown,
    comparison_tex,
    gain_markdown,
    rank_markdown,
    verdict_counts,
)
from safeecgmatch.reporting.figures import write_figures
from safeecgmatch.reporting.names import dataset_name
from safeecgmatch.reporting.provenance import provenance, release_notes
from safeecgmatch.reporting.render import render, tex, to_markdown, to_tex
from safeecgmatch.reporting.results import Results
from safeecgmatch.reporting.tables import Table, build_tables

BIBLIOGRAPHY = Path(__file__).with_name("references.bib")
PLOTS = ("training", "reliability", "ood_scores", "refusal", "confusion")
NO_GAINS = [
    "dataset",
    "ood",
    "metric",
    "scaling",
    "reading",
    "rival",
    "estimate",
    "low",
    "high",
    "relation",
    "generated",
]


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


def write_tables(
    folder: Path, tables: list[Table], columns: list[ColumnComparison], params: Params, source: str
) -> None:
    """Each table as .tex, .md and .csv, paper versus ours, references.bib and the document that compiles all."""
    for table in tables:
        (folder / f"{table.name}.tex").write_text(to_tex(table), encoding="utf-8")
        notes = "\n\n".join([f"{table.caption} {table.source}", to_markdown(table).rstrip(), *table.notes])
        (folder / f"{table.name}.md").write_text(f"{notes}\n", encoding="utf-8")
        table.frame().to_csv(folder / f"{table.name}.csv", index=False)
    (folder / "paper_vs_ours.tex").write_text(comparison_tex(columns, source), encoding="utf-8")
    (folder / "paper_vs_ours.md").write_text(comparison_markdown(columns, source), encoding="utf-8")
    comparison_frame(columns).to_csv(folder / "paper_vs_ours.csv", index=False)
    shutil.copyfile(BIBLIOGRAPHY, folder / BIBLIOGRAPHY.name)
    document = render(
        "standalone.tex.j2",
        title=tex(f"SafeECGMatch reproduced: profile {params.profile}, protocol {params.protocol}"),
        names=[*(table.name for table in tables), "paper_vs_ours"],
        bibliography=bibliography(),
    )
    (folder / "standalone.tex").write_text(document, encoding="utf-8")


def readme(
    params: Params, tables: list[Table], columns: list[ColumnComparison], runs: pd.DataFrame, source: str
) -> str:
    """The study's outcome on one page."""
    missing = runs.loc[runs["state"] != "done", "cell"].tolist()
    shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
    seconds = runs["wall_seconds"].sum() if "wall_seconds" in runs else 0
    generated = [name for name in params.grid.datasets if params.data.source(name).source == "phantom"]
    return render(
        "README.md.j2",
        title=f"Study `{params.profile}`, protocol `{params.protocol}`",
        source=source,
        cells_done=len(runs) - len(missing),
        cells_asked=len(runs),
        missing=shown,
        hours=f"{duration(seconds)} in all (wall time, summed over the cells)" if seconds else "an unrecorded time",
        generated=" and ".join(dataset_name(name).name for name in generated),
        notes=release_notes(params, runs),
        ranks=rank_markdown(proposed_ranks(columns)),
        gains=gain_markdown(gains_over(columns)),
        tables=[
            {
                "title": table.title,
                "caption": table.caption,
                "body": to_markdown(table),
                "notes": table.notes,
            }
            for table in tables
        ],
        rule=RULE,
        verdicts=verdict_counts(columns),
        settings=[
            {"title": f"{dataset_name(dataset).name}, {ood} % OOD", "ending": f"{dataset}_{ood}"}
            for dataset in params.grid.datasets
            for ood in params.grid.ood_levels
        ],
    )


def write_report(params: Params, folder: Path) -> None:
    """Read metrics.csv, runs.csv and plots/ in `folder`; write tables/, figures/ and README.md beside them."""
    metrics, runs = read_csv(folder / "metrics.csv"), read_csv(folder / "runs.csv")
    plots = {name: read_csv(folder / "plots" / f"{name}.csv") for name in PLOTS}
    source = provenance(params, runs)
    tables = build_tables(params, metrics, runs)
    columns = compare(tables, params)
    gains = pd.DataFrame(columns=NO_GAINS)
    with atomic_path(folder / "tables") as partial:
        partial.mkdir()
        write_tables(partial, tables, columns, params, source)
    with atomic_path(folder / "figures") as partial:
        partial.mkdir()
        write_figures(partial, params, Results(metrics, runs), plots, runs, gains)
    write_text(folder / "README.md", readme(params, tables, columns, runs, source))
