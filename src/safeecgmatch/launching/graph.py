"""`safeecgmatch run`: what is out of date, trained by a launcher, adopted by DVC."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from safeecgmatch.cells import Cell, cells
from safeecgmatch.config import Params
from safeecgmatch.engine.fingerprint import SOURCES, resolve
from safeecgmatch.errors import UserError
from safeecgmatch.launching import snapshot
from safeecgmatch.launching.board import board
from safeecgmatch.launching.cluster import Cluster
from safeecgmatch.launching.estimate import Speeds, seconds_of, trained_before
from safeecgmatch.launching.jobs import Detached, Failure, Job, Means, last_lines
from safeecgmatch.launching.ledger import reproduce, stale_stages
from safeecgmatch.launching.registry import check, launcher
from safeecgmatch.launching.scratch import Scratch, scratch_root
from safeecgmatch.progress import duration
from safeecgmatch.tracking.address import is_remote, tracking_uri
from safeecgmatch.tracking.uploader import Following

BEFORE_CELLS = ("download", "filter", "split", "code")
SHARED = ["code", "split"]  # the last of those before the cells; DVC adds what they need
AFTER_CELLS = ("evaluate", "tables")
LINES_OF_A_FAILED_LOG = 15


@dataclass(frozen=True)
class Plan:
    before: list[str]  # stages that cells share, as DVC targets
    cells: list[Cell]
    after: list[str]
    everything: bool = False


@dataclass(frozen=True)
class How:
    on: str  # the launcher
    jobs: int  # cells at a time; 0: as cluster.yaml or the machine says
    gpus: tuple[str, ...]  # those to use; empty: all
    cluster: Cluster
    dry_run: bool


def make_plan(params: Params, targets: Sequence[str]) -> Plan:
    """What `targets` ask for, with all that comes before it; no targets ask for everything."""
    everything = cells(params)
    if not targets:
        return Plan(SHARED, in_order(everything, params), list(AFTER_CELLS), True)
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
    return Plan([*before, *shared], in_order(chosen, params), list(AFTER_CELLS[:after]))


def needs(cell: Cell) -> tuple[str, str]:
    return "code", f"split@{cell.dataset}-{cell.ood}-{cell.seed}"


def matches(target: str, cell: Cell) -> bool:
    return target == cell.stage_name or fnmatchcase(cell.stage, target) or fnmatchcase(cell.path, target)


def in_order(asked: Sequence[Cell], params: Params) -> list[Cell]:
    """The first seed of everything before the second, the most unseen first: a study stopped early tells most."""
    return sorted(asked, key=lambda cell: (params.grid.seeds.index(cell.seed), -cell.ood))


@contextmanager
def alone() -> Iterator[None]:
    """One launching process in a project at a time."""
    scratch_root().mkdir(exist_ok=True)
    with (scratch_root() / "run.lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError("Another `safeecgmatch run` is at work in this folder; wait for it or end it.") from None
        yield


def run(plan: Plan, params: Params, how: How) -> list[Failure]:
    """Carry out `plan`; returns the failed cells, after which nothing that depends on cells is run."""
    launcher(how.on)  # a wrong name is told in a dry run too
    if not how.dry_run:
        check(how.on, how.cluster)
    gpus = choose_gpus(params, how) if how.on == "local" else ()
    if Path("src").resolve() != SOURCES:
        raise UserError(
            f"This command runs the code in {SOURCES}, not that of this folder: pip install -e . here first."
        )
    with alone():
        reproduce(plan.before)
        stale = stale_stages(cell.stage for cell in plan.cells)
        jobs = [make_job(params, cell) for cell in plan.cells if stale.get(cell.stage) is False]
        done = [job for job in jobs if is_done(job)]
        todo = [job for job in jobs if job not in done]
        waits = f" and {len(done)} trained that wait for DVC" if done else ""
        print(f"{len(plan.cells)} training cells, {len(todo)} of them to be trained{waits}.", flush=True)
        if how.dry_run:
            print(describe_submission(todo, params, how, gpus))
            return []
        failures = train(todo, done, params, how, gpus) if jobs else []
        adopt(plan, stale, failures)
    return failures


def is_done(job: Job) -> bool:
    good, sentence = Scratch(job.folder).verify()
    if sentence:
        print(sentence, flush=True)
    return good


def make_job(params: Params, cell: Cell) -> Job:
    scratch = Scratch.of(cell.path, resolve(params, cell)["fingerprint"])
    return Job(cell, scratch.folder, scratch.uid(), scratch_root() / "logs" / f"{cell.stage}.log")


def train(todo: Sequence[Job], done: Sequence[Job], params: Params, how: How, gpus: tuple[str, ...]) -> list[Failure]:
    """Leave every job finished in scratch and, as far as MLflow answers, uploaded."""
    failures: list[Failure] = []
    copy = snapshot.take(Path.cwd())
    upload = how.on != "local" and is_remote(tracking_uri())
    means = Means(copy, Path("data").resolve(), cells_at_once(params, how, gpus), gpus, how.cluster, upload)
    launch = launcher(how.on)
    with Following(killed_if_unfinished=how.on == "local") as uploader:
        for job in [*done, *([] if upload else todo)]:
            uploader.follow(job.folder)
        if todo:
            try:
                with board(todo, params.train.iterations, means.at_once, Speeds()) as report:
                    failures = launch(todo, report, means)
            except Detached as going_on:
                print(going_on, file=sys.stderr, flush=True)  # now: what there is to upload may take a while
                raise
        for job in todo if upload else []:
            if Scratch(job.folder).finished.is_dir() and not Scratch(job.folder).is_logged():
                uploader.follow(job.folder)  # its worker did not reach the server
    if how.on == "local":  # on a cluster, cells of another command may still wait for it
        shutil.rmtree(copy)
    return failures


def adopt(plan: Plan, stale: Iterable[str], failures: Sequence[Failure]) -> None:
    """DVC runs the stages, which take the finished results over; with failures, only those of the good cells."""
    failed = {failure.job.cell.stage for failure in failures}
    if not failures and plan.everything:
        reproduce()
    elif stages := [stage for stage in stale if stage not in failed] + ([] if failures else plan.after):
        reproduce(stages)


def cells_at_once(params: Params, how: How, gpus: Sequence[str]) -> int:
    """0: as many as the cluster starts."""
    asked = how.jobs or how.cluster.cells_at_once
    if how.on != "local":
        return asked
    if gpus:
        return min(asked or len(gpus), len(gpus))
    return asked or max(1, (os.cpu_count() or 1) // params.train.threads)


def choose_gpus(params: Params, how: How) -> tuple[str, ...]:
    """The GPUs of this machine to train on, by the names that CUDA_VISIBLE_DEVICES takes; none for a CPU training."""
    if params.train.device == "cpu":
        if how.gpus:
            raise UserError("--gpus was given, but train.device in params.yaml is 'cpu'; set it to 'cuda'.")
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = visible.split(",") if visible else [str(number) for number in range(gpu_count())]
    if params.train.device == "cuda" and not found:
        raise UserError("params.yaml: train.device is 'cuda', but torch sees no GPU; use 'auto' or 'cpu'.")
    missing = [gpu for gpu in how.gpus if gpu not in found]
    if missing:
        raise UserError(f"--gpus names {', '.join(missing)}, but this machine has {', '.join(found) or 'none'}.")
    return (how.gpus or tuple(found))[: how.jobs or None]


def gpu_count() -> int:
    """Asked in a process of its own: cells are forked, and a process that has spoken to a GPU cannot be."""
    code = "import torch; print(torch.cuda.device_count())"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def describe_submission(todo: Sequence[Job], params: Params, how: How, gpus: tuple[str, ...]) -> str:
    """What would be submitted, in its order, with the time that it will take as far as trained cells tell."""
    at_once = cells_at_once(params, how, gpus)
    seconds = seconds_of((job.cell for job in todo), params.train.iterations, trained_before(Path(), params.profile))
    head = f"On {how.on}, {at_once or 'as many as the cluster starts'} at a time:"
    lines = [head, *(f"  {job.cell.stage:48} {job.name}" for job in todo)]
    if seconds is None:
        lines.append("No cell of this profile was trained yet, so there is no estimate of the hours.")
    else:
        spread = f", {duration(seconds / at_once)} of waiting" if at_once else ""
        lines.append(f"About {seconds / 3600:.2f} hours of training{spread}, by the speed of cells already trained.")
    return "\n".join(lines)


def describe_failures(failures: Sequence[Failure], plan: Plan) -> str:
    parts = []
    for failure in failures:
        tail = "\n".join(f"    {line}" for line in last_lines(failure.job.log, LINES_OF_A_FAILED_LOG))
        parts.append(f"{failure.job.name} failed ({failure.reason}); the end of {failure.job.log}:\n{tail}")
    skipped = f", so {' and '.join(plan.after)} were not run" if plan.after else ""
    parts.append(
        f"{len(failures)} of {len(plan.cells)} cells failed{skipped}; the other cells are done and will not be run "
        "again. Mend the cause and run the same command once more."
    )
    return "\n\n".join(parts)
