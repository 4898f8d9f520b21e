"""`safeecgmatch run`: what is stale, in which order, and what to say in the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from safeecgmatch import tracking
from safeecgmatch.cells import Cell, cells
from safeecgmatch.config import Params
from safeecgmatch.errors import UserError
from safeecgmatch.launching.board import board
from safeecgmatch.launching.jobs import Job, Outcome, last_lines
from safeecgmatch.launching.local import run_local
from safeecgmatch.launching.places import places

DVC = (sys.executable, "-m", "dvc", "--wait-for-lock")  # without it a second DVC process gives up at once
BEFORE_CELLS = ("download", "filter", "split", "code")
SHARED = ["code", "split"]  # the last of those before the cells; DVC adds what they need
AFTER_CELLS = ("evaluate", "tables")
LOGS = Path("scratch/logs")
LINES_OF_A_FAILED_LOG = 15


@dataclass(frozen=True)
class Plan:
    before: list[str]  # stages that cells share, as DVC targets
    cells: list[str]
    after: list[str]


def make_plan(params: Params, targets: Sequence[str]) -> Plan:
    """What `targets` ask for, with all that comes before it; no targets ask for everything."""
    everything = cells(params)
    if not targets:
        return Plan(SHARED, [cell.stage for cell in everything], list(AFTER_CELLS))
    wanted: set[str] = set()
    before: list[str] = []
    after = 0
    for target in targets:
        found = [cell for cell in everything if matches(target, cell)]
        if target in AFTER_CELLS:
            after = max(after, AFTER_CELLS.index(target) + 1)
            found = everything
        elif target.partition("@")[0] in BEFORE_CELLS:
            before.append(target)
        elif not found:
            raise UserError(
                f"'{target}' names no stage or cell of params.yaml; use a name such as train_safeecgmatch, "
                f"{everything[0].stage}, {everything[0].path}, 'train@*-30-1', or one of "
                f"{', '.join(BEFORE_CELLS + AFTER_CELLS)}."
            )
        wanted |= {cell.stage for cell in found}
    chosen = [cell for cell in everything if cell.stage in wanted]
    shared = SHARED if len(chosen) == len(everything) else sorted({stage for cell in chosen for stage in needs(cell)})
    return Plan([*before, *shared], [cell.stage for cell in chosen], list(AFTER_CELLS[:after]))


def needs(cell: Cell) -> tuple[str, str]:
    return "code", f"split@{cell.dataset}-{cell.ood}-{cell.seed}"


def matches(target: str, cell: Cell) -> bool:
    return target == cell.stage_name or fnmatchcase(cell.stage, target) or fnmatchcase(cell.path, target)


def environment() -> dict[str, str]:
    """Stages say `python`; that must be the one that runs this, also where its environment is not activated."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}


def stale_stages() -> set[str]:
    done = subprocess.run([*DVC, "status", "--json"], env=environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(f"`dvc status` failed: {' '.join(done.stderr.split()) or 'no message'}")
    return set(json.loads(done.stdout))


def reproduce(*arguments: str) -> None:
    done = subprocess.run([*DVC, "repro", *arguments], env=environment(), check=False)
    if done.returncode != 0:
        raise UserError(f"`dvc repro {' '.join(arguments)}` failed; its messages are above.")


def run(plan: Plan, at_once: int) -> list[Outcome]:
    """Carry out `plan`; returns the failed cells, after which nothing that depends on cells is run."""
    stale = stale_stages()
    if any(stage.partition("@")[0] in BEFORE_CELLS for stage in stale):
        reproduce(*plan.before)
        stale = stale_stages()
    todo = [stage for stage in plan.cells if stage in stale]
    print(f"{len(plan.cells)} training cells, {len(todo)} of them to be run.")
    failed = train(todo, at_once)
    if not failed and plan.after and (todo or any(stage.partition("@")[0] in AFTER_CELLS for stage in stale)):
        reproduce("--single-item", *plan.after)
    return failed


def train(stages: Sequence[str], at_once: int) -> list[Outcome]:
    if not stages:
        return []
    jobs = [Job(stage, (*DVC, "repro", "--single-item", stage), LOGS / f"{stage}.log") for stage in stages]
    with (
        tracking.shared_recorder() as recorder,
        places(at_once) as to_train,
        board(len(jobs), "training cells") as report,
    ):
        # One cell more than may train: DVC gets it ready meanwhile.
        launcher = partial(run_local, at_once=at_once + 1, environment=environment() | recorder | to_train)
        outcomes = launcher(jobs, report)
    return [outcome for outcome in outcomes if outcome.status != 0]


def describe_failures(failed: Sequence[Outcome], plan: Plan) -> str:
    parts = []
    for outcome in failed:
        tail = "\n".join(f"    {line}" for line in last_lines(outcome.job.log, LINES_OF_A_FAILED_LOG))
        parts.append(f"{outcome.job.name} failed; the end of {outcome.job.log}:\n{tail}")
    skipped = f", so {' and '.join(plan.after)} were not run" if plan.after else ""
    parts.append(
        f"{len(failed)} of {len(plan.cells)} cells failed{skipped}; the other cells are done and will not be run "
        "again. Mend the cause and run the same command once more."
    )
    return "\n\n".join(parts)
