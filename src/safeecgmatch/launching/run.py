"""`safeecgmatch run`: what is out of date is trained by a launcher, then DVC takes all finished cells over at once.

Until DVC has recorded a cell, its finished result stays in scratch/. So a kill at any moment costs only time: what is
trained is found there by the next `run`, today or tomorrow, and taken over when all that is asked for is trained.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from statistics import fmean
from types import ModuleType

from safeecgmatch.cells import Cell, cells
from safeecgmatch.config import Params
from safeecgmatch.engine.fingerprint import SOURCES, resolve
from safeecgmatch.errors import UserError
from safeecgmatch.files import read_json
from safeecgmatch.launching import dvc, snapshot
from safeecgmatch.launching.board import Board
from safeecgmatch.launching.cluster import Cluster
from safeecgmatch.launching.jobs import Detached, Failure, Job, Means, last_lines
from safeecgmatch.launching.scratch import Scratch, scratch_root
from safeecgmatch.progress import duration
from safeecgmatch.tracking.address import is_remote, tracking_uri
from safeecgmatch.tracking.record import RECORD_FILE
from safeecgmatch.tracking.uploader import Following

LAUNCHERS = ("local", "slurm", "dask")
AFTER_CELLS = ("evaluate", "tables")
LINES_OF_A_FAILED_LOG = 15


@dataclass(frozen=True)
class Plan:
    before: list[str]  # stages that cells share; DVC adds what they need
    cells: list[Cell]
    after: list[str]


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
    shared = shared_stages(everything)
    wanted: set[Cell] = set()
    before: set[str] = set()
    after = 0
    for target in targets or AFTER_CELLS:
        found = {cell for cell in everything if matches(target, cell)}
        if target in AFTER_CELLS:
            after = max(after, AFTER_CELLS.index(target) + 1)
            found = set(everything)
        elif target in shared:
            before.add(target)
        elif not found:
            raise UserError(
                f"'{target}' names no stage or cell of params.yaml; use a name such as train_safeecgmatch, "
                f"{everything[0].stage}, {everything[0].path}, 'train@*-30-1', or one of "
                f"{', '.join([*sorted({name.partition('@')[0] for name in shared}), *AFTER_CELLS])}."
            )
        wanted |= found
    before |= {stage for cell in wanted for stage in ("code", cell.split_stage)}
    return Plan(
        sorted(before), in_order([cell for cell in everything if cell in wanted], params), list(AFTER_CELLS[:after])
    )


def shared_stages(everything: Sequence[Cell]) -> set[str]:
    """The stages before the cells, one by one and as the groups that a name without "@" means."""
    stages = {"code", *(cell.split_stage for cell in everything)}
    stages |= {f"{name}@{cell.dataset}" for name in ("download", "filter") for cell in everything}
    return stages | {stage.partition("@")[0] for stage in stages}


def matches(target: str, cell: Cell) -> bool:
    return target == cell.stage_name or fnmatchcase(cell.stage, target) or fnmatchcase(cell.path, target)


def in_order(asked: Sequence[Cell], params: Params) -> list[Cell]:
    """The first seed of everything before the second, the most unseen first: a study stopped early tells most."""
    return sorted(asked, key=lambda cell: (params.grid.seeds.index(cell.seed), -cell.ood))


def launcher(name: str) -> ModuleType:
    """The launcher's module, which is imported when it is asked for: its extra is needed only then.

    `check(cluster)` is one sentence where it cannot work here, `launch(jobs, board, means)` returns the failed jobs.
    """
    if name not in LAUNCHERS:
        raise UserError(f"There is no launcher '{name}'; those that exist are {', '.join(LAUNCHERS)}.")
    return import_module(f"safeecgmatch.launching.{name}")


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


def carry_out(plan: Plan, params: Params, how: How) -> list[Failure]:
    """Returns the failed cells, after which nothing that depends on cells is run."""
    launcher(how.on)  # a wrong name is an error in a dry run too
    how = settled(how, params)
    if Path("src").resolve() != SOURCES:
        raise UserError(
            f"This command runs the code in {SOURCES}, not that of this folder: pip install -e . here first."
        )
    if how.dry_run:
        print(preview(plan, params, how))
        return []
    launcher(how.on).check(how.cluster)
    with alone():
        dvc.recover()
        stale = dvc.stale_stages()
        if stale_shared(stale, params):
            dvc.reproduce(plan.before)
            stale = dvc.stale_stages()
        work = sort_out(plan, params, stale)
        print(work, flush=True)
        for job in work.recorded:  # also what `dvc repro` has recorded, which removes no scratch
            Scratch(job.folder).discard()
        for job in work.todo:
            Scratch(job.folder).verify()  # what is no good is told before it is trained again
        failures = train(work, params, how) if work.todo or work.done else []
        take_over(plan, stale, work, failures)
    return failures


@dataclass(frozen=True)
class Work:
    """The cells of a plan by what is to be done about them."""

    recorded: list[Job]  # up to date
    restorable: list[Job]  # DVC recorded them once, and restores them from its run cache
    done: list[Job]  # finished in scratch, and to be taken over
    todo: list[Job]

    def __str__(self) -> str:
        cells = len(self.recorded) + len(self.restorable) + len(self.done) + len(self.todo)
        waits = f" and {len(self.done)} trained that wait for DVC" if self.done else ""
        return f"{cells} training cells, {len(self.todo)} of them to be trained{waits}."


def sort_out(plan: Plan, params: Params, stale: Collection[str]) -> Work:
    work = Work([], [], [], [])
    for job in (make_job(params, cell) for cell in plan.cells):
        scratch = Scratch(job.folder)
        if job.cell.stage not in stale:
            work.recorded.append(job)
        elif scratch.finished.is_dir() and not scratch.problem():
            work.done.append(job)
        else:
            (work.restorable if scratch.recorded.exists() else work.todo).append(job)
    return work


def preview(plan: Plan, params: Params, how: How) -> str:
    """What would be done, as far as it is known without doing anything."""
    stale = dvc.stale_stages()
    if shared := stale_shared(stale, params):
        todo = [cell for cell in plan.cells if cell.stage in stale]
        head = (
            f"{len(plan.cells)} training cells, {len(todo)} of them to be trained. Out of date and run first: "
            f"{', '.join(shared)}; what they change can put other cells out of date."
        )
    else:
        work = sort_out(plan, params, stale)
        todo, head = [job.cell for job in work.todo], str(work)
    return f"{head}\n{describe_submission(todo, params, how)}"


def stale_shared(stale: Collection[str], params: Params) -> list[str]:
    return sorted(shared_stages(cells(params)).intersection(stale))


def make_job(params: Params, cell: Cell) -> Job:
    scratch = Scratch.of(cell.path, resolve(params, cell)["fingerprint"])
    return Job(cell, scratch.folder, scratch.uid(), scratch_root() / "logs" / f"{cell.stage}.log")


def train(work: Work, params: Params, how: How) -> list[Failure]:
    """Leave every job finished in scratch and, as far as MLflow answers, uploaded."""
    failures: list[Failure] = []
    copy = snapshot.take(Path.cwd())
    server = tracking_uri() if how.on != "local" and is_remote(tracking_uri()) else ""
    means = Means(copy, Path("data").resolve(), how.jobs, how.gpus, how.cluster, server)
    with Following(killed_if_unfinished=how.on == "local") as uploader:
        for job in [*work.done, *([] if server else work.todo)]:
            uploader.follow(Scratch(job.folder))
        if work.todo:
            try:
                with Board(work.todo, params.train.iterations) as report:
                    failures = launcher(how.on).launch(work.todo, report, means)
            except Detached as going_on:
                print(going_on, file=sys.stderr, flush=True)  # now: what there is to upload may take a while
                raise
        for job in work.todo if server else []:
            if Scratch(job.folder).finished.is_dir() and not Scratch(job.folder).is_logged():
                uploader.follow(Scratch(job.folder))  # its worker did not reach the server
    if how.on == "local":  # on a cluster, cells of another command may still wait for it
        shutil.rmtree(copy)
    return failures


def take_over(plan: Plan, stale: Collection[str], work: Work, failures: Sequence[Failure]) -> None:
    """DVC records the finished cells and runs what comes after all cells; then, and not before, their scratch goes."""
    failed = {failure.job for failure in failures}
    good = [job for job in (*work.restorable, *work.done, *work.todo) if job not in failed]
    after = [] if failures else plan.after
    if not good and not set(after).intersection(stale):
        return
    try:
        anew = [job.cell.stage for job in good if job not in work.restorable]
        dvc.reproduce(after or [job.cell.stage for job in good], anew)  # what comes after cells needs all of them
    except dvc.StagesFailed:
        for job in work.restorable:  # its run cache may have lost them: next time they are trained
            Scratch(job.folder).recorded.unlink()
        raise
    for job in good:
        Scratch(job.folder).discard()


def settled(how: How, params: Params) -> How:
    """With the GPUs to train on, and how many cells at a time; 0 are as many as the cluster starts."""
    asked = how.jobs or how.cluster.cells_at_once
    if how.on != "local":
        return replace(how, jobs=asked, gpus=())
    gpus = choose_gpus(params, how)
    most = len(gpus) or max(1, (os.cpu_count() or 1) // params.train.threads)
    return replace(how, jobs=min(asked, most) if asked and gpus else asked or most, gpus=gpus)


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


def describe_submission(todo: Sequence[Cell], params: Params, how: How) -> str:
    """What would be submitted, in its order, with the time that it will take as far as trained cells tell."""
    seconds = seconds_of_training(todo, params)
    head = f"On {how.on}, {how.jobs or 'as many as the cluster starts'} at a time:"
    lines = [head, *(f"  {cell.stage:48} {cell.path}" for cell in todo)]
    if seconds is None:
        lines.append("No cell of this profile was trained yet, so there is no estimate of the hours.")
    else:
        spread = f", {duration(seconds / how.jobs)} of waiting" if how.jobs else ""
        lines.append(f"About {seconds / 3600:.2f} hours of training{spread}, by the speed of cells already trained.")
    return "\n".join(lines)


def seconds_of_training(todo: Sequence[Cell], params: Params) -> float | None:
    """One cell after the other, by the cells of this profile below tracking/; None if there are none.

    A method that was never trained is taken to be like the mean of the others.
    """
    seen: dict[str, list[float]] = defaultdict(list)  # seconds of an iteration, by method
    for record in map(read_json, sorted(Path("tracking").rglob(RECORD_FILE))):
        if record["profile"] == params.profile:
            seen[record["cell"]["method"]].append(1 / record["iterations_per_second"])
    if not seen:
        return None
    speeds = {method: fmean(values) for method, values in seen.items()}
    return params.train.iterations * sum(speeds.get(cell.method, fmean(speeds.values())) for cell in todo)


def describe_failures(failures: Sequence[Failure], plan: Plan) -> str:
    parts = []
    for failure in failures:
        tail = "\n".join(f"    {line}" for line in last_lines(failure.job.log, LINES_OF_A_FAILED_LOG))
        parts.append(f"{failure.job.name} failed ({failure.reason}); the end of {failure.job.log}:\n{tail}")
    skipped = f", so {' and '.join(plan.after)} were not run" if plan.after else ""
    parts.append(
        f"{len(failures)} of {len(plan.cells)} cells failed{skipped}; the other cells are done and will not be run "
        "again. Fix the cause and run the same command once more."
    )
    return "\n\n".join(parts)
