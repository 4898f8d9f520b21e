"""Where numbers come from, in words: profile, protocol, seeds, data, commits, and notes on single rows."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.metrics import BINS
from safeecgmatch.predictions import CONFIDENCE_SCORE, OWN_SCORE
from safeecgmatch.protocols import read_protocol
from safeecgmatch.reporting.names import branch_name, corpus_size, data_name, dataset_name, in_table_order, method_name
from safeecgmatch.reporting.study import Study

SOURCES = {
    "phantom": "generated ECGs in the layout of {}",
    "physionet": "{} from PhysioNet",
    "path": "{} from a local copy",
}
COMMITS_SHOWN = 3
CELLS_SHOWN = 6
PUBLISHED_CODE = "release"
ALSO_ACCEPTS_UNSEEN = "scomatch"  # its (K+1)th pseudo-label
EVERY_METHOD = {"batch_order", "stop_at_val_1"}  # switches that all methods share: they change no algorithm


def commits(runs: pd.DataFrame) -> str:
    """The commits at which the cells were trained, shortened; a changed working tree is said."""
    if "commit" not in runs or runs["commit"].isna().all():
        return "an unrecorded commit"
    dirty = runs["dirty"].eq(True) if "dirty" in runs else pd.Series(False, runs.index)
    changed = dirty.groupby(runs["commit"], sort=False).any()
    names = [f"{str(commit)[:10]}{' with uncommitted changes' * bool(known)}" for commit, known in changed.items()]
    more = f" and {len(names) - COMMITS_SHOWN} more" if len(names) > COMMITS_SHOWN else ""
    return f"commit{'s' if len(names) > 1 else ''} {', '.join(names[:COMMITS_SHOWN])}{more}"


def shown_cells(cells: Iterable[str]) -> str:
    names = list(cells)
    more = f" and {len(names) - CELLS_SHOWN} more" if len(names) > CELLS_SHOWN else ""
    return ", ".join(names[:CELLS_SHOWN]) + more


def data_sources(params: Params) -> str:
    by_source: dict[str, list[str]] = {}
    for dataset in params.grid.datasets:
        source = params.data.source(dataset)
        parts = f" ({corpus_size(source, dataset)}: {', '.join(source.corpus)})" if source.corpus else ""
        by_source.setdefault(source.source, []).append(f"{dataset_name(dataset).name}{parts}")
    return "; ".join(SOURCES[source].format(" and ".join(names)) for source, names in by_source.items())


def accepted_as_unseen(methods: Iterable[str]) -> list[str]:
    """A note on the unseen share of accepted records, for a method whose pseudo-labels may also say "unseen"."""
    note = (
        f"{method_name(ALSO_ACCEPTS_UNSEEN).name} also accepts records as unseen: its share is that of unseen records "
        "taken for a seen class among all that it accepted."
    )
    return [note] if ALSO_ACCEPTS_UNSEEN in methods else []


def seed_list(runs: pd.DataFrame) -> str:
    seeds = sorted({int(seed) for seed in runs["seed"]})
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def provenance(params: Params, runs: pd.DataFrame) -> str:
    """The sentence that ends every caption. It names no commit: the same numbers print the same table."""
    weight = (
        "" if params.lambda_sum == 1 else f" The main runs of SafeECGMatch have lambda_sum = {params.lambda_sum:g}."
    )
    size = f"{params.data.sampling_rate} Hz, width {params.model.width}, {params.train.iterations:,} iterations"
    return (
        f"Profile {params.profile}, protocol {params.protocol}, {seed_list(runs)}; {data_sources(params)}, {size}."
        f"{weight}"
    )


def release_notes(params: Params, runs: pd.DataFrame) -> list[str]:
    """What the published code does to three of the methods of these runs; nothing under another protocol."""
    if params.protocol != PUBLISHED_CODE:
        return []
    methods = set(runs["method"])
    dropped = runs[(runs["method"] == "safestudent") & runs["no_competitor"].eq(True)]["cell"]
    other_task = (runs["dataset"].eq("cinc21") & runs["ood"].eq(60)).any() and not params.data.switches
    notes = {
        "SafeStudent: as in the published code, a seed whose unlabelled phase never beats its supervised phase has no "
        f"result and counts as missing ({', '.join(dropped) or 'none here'}).": "safestudent" in methods,
        "TS-TFC: in the published code it never leaves its warm-up, so no unlabelled record influences a "
        "weight.": "tstfc" in methods,
        "CompleMatch: in the published code it is TS-TFC under another name; the two rows are equal.": "complematch"
        in methods,
        "CinC21 at 60 %: the published code takes Rhythm, CD and Other as seen classes there, in one fixed split; it "
        "is another task than at 30 %.": other_task,
    }
    return [note for note, holds in notes.items() if holds]


def floor_notes(study: Study, datasets: Iterable[str]) -> list[str]:
    """What an ECE of zero would look like: the noise of so many test records in so many bins."""
    metrics, runs, notes = study.metrics, study.runs, []
    for dataset in dict.fromkeys(datasets):
        floors = metrics.loc[(metrics["metric"] == "ece_floor") & (metrics["dataset"] == dataset), "value"]
        records = runs.loc[runs["dataset"] == dataset, "test"].dropna() if "test" in runs else pd.Series(dtype=float)
        if len(floors):
            size = f" ({int(max(records)):,} records in {BINS} bins)" if len(records) else f" ({BINS} bins)"
            name = data_name(study.params, dataset).name
            notes.append(
                f"A perfectly calibrated model would show an ECE of about {floors.median():.3f} on {name}{size}."
            )
    return notes


def diverged_notes(runs: pd.DataFrame) -> list[str]:
    """Why a seed that was trained is missing."""
    return [f"{row.cell} has no result: {row.diverged}" for row in runs[runs["state"] == "diverged"].itertuples()]


def branch_notes(study: Study, runs: pd.DataFrame) -> list[str]:
    """Which branch was reported, seed by seed, of the methods that choose the better one on validation."""
    notes, done = [], runs[runs["state"] == "done"]
    for method in (method for method in study.params.grid.methods if len(study.branches.get(method, [])) > 1):
        parts = []
        for (dataset, ood), rows in done[done["row"] == method].groupby(["dataset", "ood"], sort=False):
            by_branch = rows.groupby("branch", sort=False)
            chosen = [f"{branch_name(str(branch))} ({seed_list(members)})" for branch, members in by_branch]
            parts.append(f"{data_name(study.params, str(dataset)).name} {ood} %: {', '.join(chosen)}")
        said = f"{method_name(method).name} reports the branch that is better on validation: {'; '.join(parts)}."
        notes += [said] if parts else []
    return notes


def score_notes(runs: pd.DataFrame) -> list[str]:
    """Which unseen-class score is behind a method's rows."""
    own, plain = [], []
    for method in in_table_order(list(runs["method"].unique())):
        rows = runs[(runs["method"] == method) & (runs["state"] == "done")]
        name = method_name(method)
        if rows["unseen_score"].eq(OWN_SCORE).any():
            own.append(f"{name.name}: {name.score or OWN_SCORE}")
        elif rows["unseen_score"].eq(CONFIDENCE_SCORE).any():
            plain.append(name.name)
    notes = [f"Scores of their own: {'; '.join(own)}."] if own else []
    return notes + ([f"{CONFIDENCE_SCORE}: {', '.join(plain)}."] if plain else [])


def warning_notes(runs: pd.DataFrame) -> list[str]:
    """What the trainings warned of, and where."""
    if "warnings" not in runs:
        return []
    warned = runs.dropna(subset="warnings")
    said = warned.assign(text=warned["warnings"].astype(str).str.split("; ")).explode("text")
    said["text"] = said["text"].str.rstrip(".")
    by_text = said[said["text"] != ""].groupby("text", sort=False)["cell"]
    return [f"Warning in {len(cells)} cells: {text} ({shown_cells(cells)})." for text, cells in by_text]


def variant_note(params: Params, methods: list[str]) -> str:
    """Which rows run another variant than the code behind the published table, from the lists of switches."""
    if params.protocol == PUBLISHED_CODE:
        return "All rows run the variant of the published code."
    known = {method: read_protocol(method) if method in [*params.methods, PROPOSED] else {} for method in methods}
    another = [
        method_name(method).name
        for method, switches in known.items()
        if any(
            switch.get(params.protocol) != switch.get(PUBLISHED_CODE)
            for name, switch in switches.items()
            if name not in EVERY_METHOD
        )
    ]
    same = [name for method in methods if (name := method_name(method).name) not in another]
    rest = f" {', '.join(same)} differ in batch order and stopping alone." if same else ""
    return (
        f"{len(another)} of {len(methods)} rows run another variant than the published code behind the paper's "
        f"numbers: {', '.join(another)}.{rest} `safeecgmatch protocol` lists the switches."
    )
