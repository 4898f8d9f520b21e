"""Where numbers come from, in words: profile, protocol, seeds, data, commits, and notes on single rows."""

from __future__ import annotations

import pandas as pd

from safeecgmatch.config import Params
from safeecgmatch.reporting.names import dataset_name

SOURCES = {
    "phantom": "generated phantom ECGs (phantom)",
    "physionet": "the PhysioNet archive (physionet)",
    "path": "a local copy of the archive (path)",
}
COMMITS_SHOWN = 3


def commits(runs: pd.DataFrame) -> str:
    """The commits at which the cells were trained, shortened; a changed working tree is said."""
    if "commit" not in runs or runs["commit"].dropna().empty:
        return "an unrecorded commit"
    known = runs[runs["commit"].notna()]
    names = []
    for commit, cells in known.groupby("commit", sort=False):
        changed = cells["dirty"].fillna(False).astype(bool).any() if "dirty" in cells else False
        names.append(str(commit)[:10] + (" with uncommitted changes" if changed else ""))
    shown = ", ".join(names[:COMMITS_SHOWN])
    more = f" and {len(names) - COMMITS_SHOWN} more" if len(names) > COMMITS_SHOWN else ""
    return f"commit{'s' if len(names) > 1 else ''} {shown}{more}"


def data_sources(params: Params) -> str:
    by_source: dict[str, list[str]] = {}
    for dataset in params.grid.datasets:
        by_source.setdefault(params.data.source(dataset).source, []).append(dataset_name(dataset).name)
    return "; ".join(f"{' and '.join(names)}: {SOURCES[source]}" for source, names in by_source.items())


def provenance(params: Params, runs: pd.DataFrame) -> str:
    """The sentence that ends every caption."""
    seeds = ", ".join(str(seed) for seed in params.grid.seeds)
    weight = (
        "" if params.lambda_sum == 1 else f" The main runs of SafeECGMatch have lambda_sum = {params.lambda_sum:g}."
    )
    return (
        f"Profile {params.profile}, protocol {params.protocol}, seed{'s' if len(params.grid.seeds) > 1 else ''} "
        f"{seeds}; {data_sources(params)}, {params.data.sampling_rate} Hz; cells trained at {commits(runs)}.{weight}"
    )


def release_notes(params: Params, runs: pd.DataFrame) -> list[str]:
    """What the published code does to three rows; nothing under another protocol."""
    if params.protocol != "release":
        return []
    notes = []
    methods = params.grid.methods
    if "safestudent" in methods:
        flagged = runs[(runs["method"] == "safestudent") & runs["no_competitor"].eq(True)]
        dropped = ", ".join(flagged["cell"]) or "none here"
        notes.append(
            "SafeStudent: as in the published code, a seed whose unlabelled phase never beats its supervised phase "
            f"has no result and counts as missing ({dropped})."
        )
    if "tstfc" in methods:
        notes.append(
            "TS-TFC: in the published code it never leaves its warm-up, so no unlabelled record influences a weight."
        )
    if "complematch" in methods:
        notes.append("CompleMatch: in the published code it is TS-TFC under another name; the two rows are equal.")
    if "cinc21" in params.grid.datasets and 60 in params.grid.ood_levels and not params.data.switches:
        notes.append(
            "CinC21 at 60 %: the published code takes Rhythm, CD and Other as seen classes there, in one fixed split; "
            "it is another task than at 30 %."
        )
    return notes
