"""The sections of a report as Markdown, from the params, the frames that `evaluate` wrote, and the verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pandas as pd

from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.progress import duration
from safeecgmatch.protocols import read_protocol
from safeecgmatch.reporting.audits import audit_findings
from safeecgmatch.reporting.compare import NOTE, PLACES, rank_grid, why_nothing
from safeecgmatch.reporting.deviations import Deviation, comparability, method_values
from safeecgmatch.reporting.figures import Drawn
from safeecgmatch.reporting.names import data_name, dataset_name, method_name, source_names
from safeecgmatch.reporting.page import items, picture, words
from safeecgmatch.reporting.plot_data import ALL, FEWEST
from safeecgmatch.reporting.provenance import (
    commits,
    data_sources,
    diverged_notes,
    release_notes,
    seed_list,
    shown_cells,
    variant_note,
)
from safeecgmatch.reporting.rows import entries, methods
from safeecgmatch.reporting.study import Study, places, sources_of
from safeecgmatch.reporting.verdicts import GAINS, Judgement, at_this_size

SOURCES_TEXT = (
    "Where class and source are correlated, a network may learn the source, so an accuracy says little unless it is "
    "well above that of a guess by the source: the commonest seen class of the record's source in the corpus, scored "
    f"on test. A dash: fewer than {FEWEST} test records."
)
DEVIATION_HEADS = ["Setting", "Here", "Paper", "Why", "What it means"]
FILES = (
    "[metrics.csv](metrics.csv): every metric of every cell, branch and scaling; [runs.csv](runs.csv): MLflow run, "
    "commit, cost and state of each cell; [tables/](tables): every table as LaTeX, Markdown and CSV; "
    "[appendix.tex](tables/appendix.tex): all of them in one document; [figures/](figures): PNG and PDF; "
    "[report.html](report.html): this page in one file, with tables that sort, fit to print."
)


def _distinct(runs: pd.DataFrame, column: str) -> str:
    values = runs[column].dropna() if column in runs else pd.Series(dtype=str)
    return ", ".join(dict.fromkeys(str(value) for value in values if str(value))) or "not recorded"


def what_was_run(study: Study, rows: list[Deviation]) -> list[str]:
    """Data, size, seeds, hardware, versions, cost; and what may be compared with the paper."""
    params, runs = study.params, study.runs
    done = runs[runs["state"] == "done"]
    missing = runs.loc[runs["state"] == "missing", "cell"]
    seconds = runs["cpu_seconds"].sum()
    counts = f"{len(done)} of {len(runs)} cells"
    gone = f"; missing: {shown_cells(missing)}" if len(missing) else ""
    size = (
        f"{params.data.sampling_rate} Hz, backbone width {params.model.width}, {params.train.iterations:,} iterations, "
        f"batches of {params.train.batch}, an epoch of {params.train.epoch:,} iterations"
    )
    threads = _distinct(runs, "threads").replace(".0", "")
    return [
        f"**{comparability(params, rows)}**",
        items(
            [
                f"Data: {data_sources(params)}.",
                f"Size: {size}; profile `{params.profile}`, protocol `{params.protocol}`, {seed_list(runs)}.",
                f"Done: {counts}{gone}.",
                f"Cost: {duration(seconds)} of CPU time for the trainings; by method below.",
                f"Hardware: {_distinct(runs, 'processor')}; device {_distinct(runs, 'device')}, {threads} thread(s) a "
                "cell.",
                f"Versions: {_distinct(runs, 'versions')}.",
                f"Cells trained at {commits(runs)}.",
                *diverged_notes(runs),
                *release_notes(params, runs),
            ]
        ),
    ]


def cost(params: Params, runs: pd.DataFrame) -> str:
    """Wall time and CPU hours by method."""
    parts = {method_name(method).name: runs[runs["method"] == method] for method in methods(params)}
    lines = []
    for name, rows in [*parts.items(), ("All", runs)]:
        done, hours = rows[rows["state"] != "missing"], f"{rows['cpu_seconds'].sum() / 3600:.2f}"
        mean = f"{done['wall_seconds'].mean():,.0f} s" if len(done) else "–"
        if len(rows):  # CaliMatch may be there by its twin alone
            lines.append([name, f"{len(done)} of {len(rows)}", "" if name == "All" else mean, hours])
    return words(["Method, with its variants", "Cells", "Mean wall time", "CPU hours"], lines)


def claims_table(judgements: list[Judgement], notes: list[str]) -> list[str]:
    """Claim by claim; a verdict from runs that are not of the paper's size is marked, and the size stated once."""
    lines = []
    for judgement in judgements:
        reading = f" ({judgement.reading})" if judgement.reading else ""
        size = " at this size" if judgement.size else ""
        claim = f"“{judgement.claim.plain}” {judgement.claim.place}"
        lines.append([judgement.id, claim, f"**{judgement.verdict}**{size}{reading}", judgement.evidence])
    counts = Counter(judgement.verdict for judgement in judgements)
    return [
        f"Of {len(judgements)} claims: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}. {GAINS}",
        words(["", "Claim", "Verdict", "Evidence"], lines),
        *(f"“At this size” {size}" for size in at_this_size(judgements)),
        *notes,
    ]


def audit() -> str:
    """What needs no training: the paper's own numbers."""
    return items([f"**{finding.title}.** {finding.text}" for finding in audit_findings()])


def deviation_table(rows: list[Deviation]) -> str:
    lines = [[row.setting, row.ours, row.paper, row.why, row.meaning] for row in rows]
    return words(DEVIATION_HEADS, lines) if rows else "None: every setting is the paper's."


def against_the_paper(params: Params, comparison: pd.DataFrame) -> list[str]:
    if nothing := why_nothing(comparison):
        return [nothing]
    heads, lines = rank_grid(comparison)
    return [
        f"{NOTE} {PLACES} Cell by cell: [paper_vs_ours.md](tables/paper_vs_ours.md).",
        variant_note(params, methods(params)),
        "Place of SafeECGMatch among the methods, 1 = best:",
        words(heads, lines),
    ]


def sizes(params: Params, runs: pd.DataFrame, corpus: pd.DataFrame) -> str:
    """Records per part of the split, and how many people they are of."""
    parts = ["labelled", "pool", "validation", "test", "open_test"]
    lines = []
    for where in places(params):
        rows = where.rows_of(runs[(runs["state"] == "done") & (runs["role"] != "arm")])
        cells = [", ".join(f"{int(value):,}" for value in rows[part].dropna().unique()) or "–" for part in parts]
        here = corpus[corpus["dataset"] == where.dataset]
        known = here["patients"].dropna()
        patients = "–" if here.empty else f"{int(known.iloc[0]):,}" if len(known) else "unknown"
        lines.append([where.title, *cells, patients])
    heads = ["", *(part.replace("_", " ") for part in parts), "patients of all records"]
    return words(heads, lines)


def source_blocks(params: Params, corpus: pd.DataFrame, sources: pd.DataFrame) -> list[str]:
    """For every dataset of several sources: source by class, accuracy by source, and what the source alone tells."""
    parts: list[str] = []
    for dataset in dict.fromkeys(sources["dataset"]):
        here, names, order = corpus[corpus["dataset"] == dataset], source_names(dataset), sources_of(corpus, dataset)
        counts = here.pivot_table(index="source", columns="label", values="records", fill_value=0, aggfunc="sum")
        counts = counts.loc[order, counts.sum().sort_values(ascending=False, kind="stable").index]
        counts.loc[ALL] = counts.sum()
        counts[ALL] = counts.sum(axis=1)
        lines = [[names.get(str(name), str(name)), *(f"{n:,}" for n in line)] for name, line in counts.iterrows()]
        parts += [
            f"## Sources of {dataset_name(dataset).name}",
            f"{data_name(params, dataset).name}: {counts.loc[ALL, ALL]:,} records. {SOURCES_TEXT}",
            words(["Source", *map(str, counts.columns)], lines),
        ]
        for where in (where for where in places(params) if where.dataset == dataset):
            parts += [f"Accuracy on test by source, mean over the seeds; {where.title}:"]
            parts.append(_source_grid(params, where.rows_of(sources), order, names))
    return parts


def _source_grid(params: Params, lines: pd.DataFrame, order: list[str], names: dict[str, str]) -> str:
    columns = [ALL, *order]
    of_seeds = lines.drop_duplicates(["seed", "source"])
    records = of_seeds.groupby("source")["records"].sum()
    guess = of_seeds.groupby("source")["guess"].mean().rename("guess")
    rows = {"guess": "Guess by source"} | {row.key: row.label for row in entries(params)}
    means = pd.concat([guess.to_frame().T, lines.pivot_table("acc", "row", "source")]).reindex(
        list(rows), columns=columns
    )
    heads = [f"{names.get(source, source)} (N = {records.get(source, 0):,})" for source in columns]
    shown = [
        [label, *("–" if pd.isna(value) else f"{value:.3f}" for value in values)]
        for label, values in zip(rows.values(), means.to_numpy(), strict=True)
    ]
    return words(["Method", *heads], shown)


def settings_of_methods(params: Params) -> str:
    """Hyper-parameters and switches of every method as they were resolved."""
    lines = []
    for method in [*params.grid.methods, PROPOSED]:
        known = read_protocol(method)
        values = method_values(params, method)
        own = ", ".join(f"{key} {value}" for key, value in values.items() if key not in known)
        switched = ", ".join(f"{key} {value}" for key, value in values.items() if key in known)
        lines.append(f"**{method_name(method).name}**: {own or 'none'}; switches: {switched}.")
    return items(lines)


def forest(figures: Mapping[str, Drawn]) -> str:
    if "forest" not in figures:
        return "Paired gains of SafeECGMatch are drawn here when two seeds of it and of another method are trained."
    return picture("forest", figures["forest"].caption)


def pictures(params: Params, figures: Mapping[str, Drawn]) -> list[str]:
    """Those of all settings but the forest, which is among the claims; then setting by setting."""
    parts = [picture(name, one.caption) for name, one in figures.items() if not one.where and name != "forest"]
    for where in places(params):
        here = [picture(name, one.caption) for name, one in figures.items() if one.where == where]
        parts += [f"### {where.title}", *(here or ["No runs yet."])]
    return parts
