"""Metrics of all cells, from their stored predictions alone: no network is run, no cell is found by globbing.

Each cell is turned into frames of aggregates by itself; comparisons are made of these frames alone. So cells that were
trained elsewhere count with what an earlier report says of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from safeecgmatch.cells import Cell, cells
from safeecgmatch.config import Params
from safeecgmatch.engine.signal_store import Entry
from safeecgmatch.errors import UserError
from safeecgmatch.files import atomic_path, write_json
from safeecgmatch.predictions import branches_of, reported_branch, score_type
from safeecgmatch.progress import Progress
from safeecgmatch.reporting.contrasts import DIGITS, Measured, contrast_frame, draw_frame, measured, rows_by_setting
from safeecgmatch.reporting.plot_data import (
    accuracy_ece_frame,
    choices,
    corpus_frame,
    plot_frames,
    read_entries,
    validation_frame,
)
from safeecgmatch.reporting.stored import (
    CELL_FRAMES,
    IDENTITY,
    NOTHING,
    Earlier,
    Frames,
    Judge,
    StoredCell,
    asked_for,
    begun_row,
    joined,
    load_cell,
    sentence,
)
from safeecgmatch.reporting.study import TRAINING, Study, records
from safeecgmatch.reporting.twin import LEARNED_T, calimatch_of, is_derived

METRIC_COLUMNS = [
    *IDENTITY, "row", "role", "branch", "scaling", "metric", "value", "config_hash", "reported", "counted", "cell",
]  # fmt: skip
FILTERED = Path("data", "filtered")
FROM_SUMMARY = [
    "best_iteration", "best_val_accuracy", "iterations", "parameters", "labelled", "pool", "validation", "test",
    "open_test", "diverged", "no_competitor",
]  # fmt: skip
FROM_TRACKING = [
    "run_id", "commit", "dirty", "started", "wall_seconds", "cpu_seconds", "iterations_per_second", "device", "threads",
    "processor",
]  # fmt: skip
COUNTS = [
    "best_iteration", "iterations", "parameters", "labelled", "pool", "validation", "test", "open_test", "threads",
]  # fmt: skip


def training_facts(history: pd.DataFrame) -> dict[str, float]:
    """Over a whole run: the share of offered pool records that were accepted and the unseen share among them; the last
    temperatures; the teacher's last validation accuracy. What a method does not have is absent.

    `_second` marks the second branch: history.csv names it, and leaves the first one (main or time) unnamed in its
    shares. An interval in which nothing was offered has no share and no weight.
    """
    facts = {}
    known = [str(name) for name in history if history[name].notna().any()]
    for column in (name for name in known if name.startswith("mask_rate")):
        branch = column.removeprefix("mask_rate")
        ending, rate = "_second" if branch else "", history[column].dropna()
        facts[f"accepted{ending}"] = float(rate.mean())
        unseen = history.get(f"pseudo_ood_share{branch}")
        if unseen is not None and rate.sum() > 0:
            facts[f"accepted_unseen{ending}"] = float((rate * unseen[rate.index].fillna(0)).sum() / rate.sum())
    for column in (name for name in known if name.startswith("temperature.")):
        _, kind, branch = column.split(".")
        ending = "" if branch in ("main", "time") else "_second"
        facts[f"t_{kind}{ending}"] = float(history[column].dropna().iloc[-1])
    if "teacher_accuracy" in known:
        facts["teacher_accuracy"] = float(history["teacher_accuracy"].dropna().iloc[-1])
    return facts


def lines_of(stored: StoredCell, branch: str, values: Measured, reported: bool) -> list[dict[str, Any]]:
    """Rows of metrics.csv."""
    cell = stored.cell
    common = {
        **stored.identity, "row": cell.row, "role": cell.role, "branch": branch, "reported": reported,
        "config_hash": stored.config["config_hash"], "counted": stored.counted, "cell": cell.path,
    }  # fmt: skip
    return [{**common, "metric": metric, "scaling": way, "value": value} for (metric, way), value in values.items()]


def metric_rows(stored: StoredCell) -> list[dict[str, Any]]:
    """One row per branch, scaling and metric; `posthoc` divides by a temperature fitted on validation."""
    rows = []
    for branch in branches_of(stored.predictions):
        reported = branch == reported_branch(stored.predictions)
        rows += lines_of(stored, branch, measured(stored.predictions, branch), reported)
    facts = training_facts(stored.history)
    return rows + lines_of(stored, "all", {(name, TRAINING): value for name, value in facts.items()}, True)


def run_row(stored: StoredCell) -> dict[str, Any]:
    """One line of runs.csv; state is done or diverged."""
    row = begun_row(stored.cell, "diverged" if stored.diverged else "done")
    row |= {key: stored.tracking.get(key) for key in FROM_TRACKING}
    row |= {key: stored.summary.get(key) for key in FROM_SUMMARY}
    row["versions"] = ", ".join(f"{name} {text}" for name, text in stored.tracking.get("versions", {}).items())
    row["warnings"] = "; ".join(stored.summary.get("warnings", []))
    row["config_hash"] = stored.config["config_hash"]
    if not stored.diverged:
        branch = reported_branch(stored.predictions)
        row |= {"branch": branch, "unseen_score": score_type(stored.predictions, branch)}
    return row


def headline_numbers(study: Study) -> dict[str, Any]:
    """For `dvc metrics`: mean ACC and ECE of every method in every setting, as `ptbxl_60.fixmatch.acc`, and the cells.

    SafeECGMatch has a name for each reading: `safeecgmatch_fused`, `safeecgmatch-learned_t_time`.
    """
    done = int((study.runs["state"] == "done").sum())
    numbers: dict[str, Any] = {"cells": {"asked": len(study.runs), "done": done}}
    for line in records(study.plots["accuracy_ece"]):
        setting = numbers.setdefault(f"{line.dataset}_{line.ood}", {})
        setting[line.row.replace("@", "_")] = {"acc": line.acc, "ece": line.ece}
    return numbers


def frames_of(stored: StoredCell, entries: list[Entry]) -> Frames:
    """Everything that is said about one cell; of one that diverged, how its training went."""
    plots = plot_frames(stored, entries)
    if stored.diverged:
        return plots
    rows = metric_rows(stored)
    draws = draw_frame(stored, rows)
    for branch, choice, metrics, reported in choices(stored, plots["budget"]):
        rows += lines_of(stored, branch, {(name, choice): value for name, value in metrics.items()}, reported)
    return plots | {"metrics": pd.DataFrame(rows, columns=METRIC_COLUMNS), "draws": draws}


def evaluate(
    params: Params,
    runs: Path = Path("runs"),
    tracking: Path = Path("tracking"),
    waiting: Callable[[Cell], Path | None] = lambda cell: None,
    judge: Judge | None = None,
    earlier: Mapping[str, Earlier] = NOTHING,
) -> Study:
    """Everything that can be said about the cells of params.yaml, as frames; `waiting` as in `load_cell`. What is said
    of the sources of records needs data/filtered beside the folder `runs`."""
    run_rows, found, passed_over = [], list[Frames](), list[str]()
    judge = judge or asked_for(params, runs.parent / "data")
    wanted, entries = cells(params), read_entries(runs.parent / FILTERED, params.datasets())
    with Progress(len(wanted), "evaluate", "cells") as bar:
        for cell in wanted:
            stored, reason = load_cell(cell, runs, tracking, waiting(cell), judge)
            passed_over += [reason] if reason else []
            if stored is not None:
                derived = is_derived(params) and cell.variant == LEARNED_T and not stored.diverged
                members = [stored, *([calimatch_of(stored)] if derived else [])]
                found += [frames_of(member, entries.get(cell.dataset, [])) for member in members]
                run_rows.append(run_row(stored))
            elif cell.path in earlier:
                found.append(earlier[cell.path].frames)
                run_rows.append(earlier[cell.path].run)
            else:
                run_rows.append(begun_row(cell, "missing"))
            bar.advance()
    foreign = sentence(passed_over)
    if not found:
        raise UserError(f"No cell of params.yaml has been trained in {runs}; run `dvc repro` first.{foreign}")
    if not any("metrics" in one for one in found):
        raise UserError(f"Every cell that has been trained diverged; summary.json in its folder says why.{foreign}")
    if foreign:
        print(f"warning:{foreign}", file=sys.stderr)
    frames = {name: joined([one[name] for one in found if name in one]) for name in CELL_FRAMES}
    metrics, draws = frames.pop("metrics"), frames.pop("draws")
    run_frame = pd.DataFrame(run_rows)
    run_frame = run_frame.astype({name: "Int64" for name in COUNTS if name in run_frame})
    summaries = {
        "accuracy_ece": accuracy_ece_frame(metrics),
        "safeecgmatch_validation": validation_frame(frames["training"]),
        "corpus": corpus_frame(entries),
    }
    return Study(params, metrics, run_frame, contrast_frame(rows_by_setting(draws)), frames | summaries, draws)


def write_evaluation(study: Study, folder: Path) -> None:
    """metrics.csv, runs.csv, draws.csv.gz, headline.json and plots/*.csv at full precision; contrasts.csv with six
    digits."""
    for name, frame in {"metrics.csv": study.metrics, "runs.csv": study.runs}.items():
        with atomic_path(folder / name) as partial:
            frame.to_csv(partial, index=False)
    with atomic_path(folder / "draws.csv.gz") as partial:  # without a date inside, so that equal draws are equal bytes
        study.draws.to_csv(partial, index=False, compression={"method": "gzip", "mtime": 0})
    with atomic_path(folder / "contrasts.csv") as partial:
        study.contrasts.to_csv(partial, index=False, float_format=DIGITS)
    write_json(folder / "headline.json", headline_numbers(study))
    with atomic_path(folder / "plots") as partial:
        partial.mkdir()
        for name, frame in study.plots.items():
            frame.to_csv(partial / f"{name}.csv", index=False)
