"""SLURM through submitit: one array, one cell per task, on a folder that all nodes share.

Where SLURM is about to take a node away it sends SIGUSR2 (time limit) or SIGTERM (preemption, requeue): the cell writes
its checkpoint, and the task goes on from there when it is started again. Which job trains which cell stands in the
cell's folder, so a command that is started again joins what is queued.

A job is followed with squeue and by the result that it leaves: submitit's own way needs accounting, asks less and less
often, and unpickles a result. sacct tells why a job ended without one.
"""

from __future__ import annotations

import getpass
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safeecgmatch.errors import UserError
from safeecgmatch.files import read_json, write_json
from safeecgmatch.launching.board import Board
from safeecgmatch.launching.cluster import Cluster
from safeecgmatch.launching.jobs import Detached, Failure, Job, Means, need, one_line, start
from safeecgmatch.launching.scratch import Scratch, scratch_root

NOTE = "slurm.json"  # in a cell's folder: the job that trains it
SECONDS_BETWEEN_QUESTIONS = 5.0
SECONDS_FOR_AN_ANSWER = 25.0
ABSENCES = 3  # questions in a row without the job: shared folders show a result with some delay
TIME_LIMITS = 10_000  # how often a cell may reach its time limit; it goes on from its checkpoint each time
LINES_OF_A_SUBMISSION_LOG = 20


class NoAnswer(UserError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"SLURM does not answer ({reason}): look with `squeue`, or ask those who run the cluster.")
        self.reason = reason


@dataclass
class SlurmTask:
    """What submitit runs on a node: the cell as a process of its own, from the snapshot."""

    job: Job
    means: Means
    process: subprocess.Popen[bytes] | None = field(default=None, init=False, compare=False)

    def __call__(self) -> None:
        self.process = start(self.job, self.means)
        status = self.process.wait()
        if status != 0:
            sys.exit(status if status > 0 else 128 - status)  # a shell's way to say "killed by a signal"

    def checkpoint(self) -> Any:
        """Called by submitit, inside `__call__`'s wait, before the time limit; what it returns is then requeued."""
        from submitit.helpers import DelayedSubmission

        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            # Popen.wait would wait for itself
            ended = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
            if ended is not None and ended.si_status == 0:
                sys.exit(0)  # it was finished at that moment: nothing to go on with
        return DelayedSubmission(SlurmTask(self.job, self.means))


def check(cluster: Cluster) -> None:
    """One sentence where nothing can be submitted."""
    need("submitit", "slurm")
    for program in ("sbatch", "squeue", "scancel", "scontrol", "srun"):  # the last, which is not used, for submitit
        if shutil.which(program) is None:
            raise UserError(f"--on slurm needs SLURM's {program}, which is not here: run this on a login node.")
    ask_queue()


def launch(jobs: Sequence[Job], report: Board, means: Means) -> list[Failure]:
    queue = ask_queue()
    known = {job: found for job in jobs if (found := queued_as(job, queue))}
    new = [job for job in jobs if job not in known]
    if known:
        print(f"Queued or running already: {len(known)} of the cells; nothing is submitted twice.", file=sys.stderr)
    known |= submit(new, means)
    try:
        return follow(known, report)
    except KeyboardInterrupt:
        raise Detached(farewell(known)) from None


def queued_as(job: Job, queue: dict[str, tuple[str, str]]) -> str:
    """The id of the live SLURM job that trains this cell, or nothing."""
    note = job.folder / NOTE
    if not note.exists():
        return ""
    noted = read_json(note)
    name, _ = queue.get(noted["id"], ("", ""))
    return noted["id"] if name == noted["name"] else ""  # ids begin anew where SLURM's state was lost


def submit(jobs: Sequence[Job], means: Means) -> dict[Job, str]:
    """The SLURM job of every cell, noted in the cell's folder."""
    if not jobs:
        return {}
    import submitit

    name = f"safeecgmatch-{means.snapshot.name}"
    executor = submitit.SlurmExecutor(
        folder=submissions(),
        max_num_timeout=TIME_LIMITS,
        python=f"exec {shlex.quote(sys.executable)}",  # in the shell's place, where SLURM's signals arrive
    )
    executor.update_parameters(**parameters(means, name, len(jobs)))
    for job in jobs:
        job.folder.mkdir(parents=True, exist_ok=True)
        job.log.unlink(missing_ok=True)
    # Jobs without their notes would be submitted a second time: no interrupt in between.
    handlers = {which: signal.signal(which, signal.SIG_IGN) for which in (signal.SIGINT, signal.SIGTERM)}
    try:
        with executor.batch():
            submitted = [executor.submit(SlurmTask(job, means)) for job in jobs]
        ids = {job: entry.job_id for job, entry in zip(jobs, submitted, strict=True)}
        for job, number in ids.items():
            write_json(job.folder / NOTE, {"id": number, "name": name})
    except RuntimeError as error:  # of submitit, with sbatch's words
        raise UserError(f"SLURM took no job ({one_line(error)}): look at cluster.yaml.") from None
    finally:
        for which, handler in handlers.items():
            signal.signal(which, handler)
    return ids


def submissions() -> Path:
    """Where submitit keeps its files."""
    return scratch_root() / "slurm"


def parameters(means: Means, name: str, cells: int) -> dict[str, Any]:
    """submitit's parameters for an array of cells, from cluster.yaml."""
    wanted = means.cluster.slurm
    return {
        "job_name": name,
        "partition": wanted.partition,
        "account": wanted.account,
        "time": wanted.minutes,
        "cpus_per_task": wanted.cpus,
        "gpus_per_node": wanted.gpus or None,
        "array_parallelism": means.at_once or cells,
        "stderr_to_stdout": True,
        "use_srun": False,
        # submitit unpickles a SlurmTask: of the snapshot, like all the rest
        "setup": [f"export PYTHONPATH={shlex.quote(str(means.snapshot / 'src'))}"],
        "additional_parameters": {
            "mem": wanted.memory,
            "requeue": True,
            "signal": f"B:USR2@{min(wanted.warning_seconds, wanted.minutes * 30)}",
            **wanted.options,
        },
    }


def follow(known: dict[Job, str], report: Board) -> list[Failure]:
    """Tell `report` what becomes of the jobs until the last of them has ended."""
    waiting, running = dict(known), set[Job]()
    absences = dict.fromkeys(known, 0)
    failures: list[Failure] = []
    silent = False
    asked = float("-inf")
    while waiting:
        report.tick()
        time.sleep(0.5)
        if time.monotonic() - asked < SECONDS_BETWEEN_QUESTIONS:
            continue
        asked = time.monotonic()
        try:
            queue, silent = ask_queue(), False
        except NoAnswer as trouble:
            if not silent:
                print(f"SLURM does not answer ({trouble.reason}); waiting until it does.", file=sys.stderr)
            silent = True
            continue
        for job, number in list(waiting.items()):
            _, state = queue.get(number, ("", ""))
            absences[job] = 0 if state else absences[job] + 1
            if Scratch(job.folder).finished.is_dir():
                failure = None
            elif absences[job] < ABSENCES:
                if state == "RUNNING" and job not in running:
                    running.add(job)
                    report.started(job)
                elif state == "PENDING" and job in running:
                    running.remove(job)
                    report.queued(job)
                continue
            else:
                failure = Failure(job, why_it_ended(number))
                failures.append(failure)
                keep_submission_log(job, number)
            del waiting[job]
            (job.folder / NOTE).unlink(missing_ok=True)
            if state == "PENDING":  # it was requeued in the moment in which its cell was finished
                with suppress(NoAnswer):
                    ask("scancel", number)
            report.finished(job, failure)
    return failures


def ask_queue() -> dict[str, tuple[str, str]]:
    """Name and state of this user's jobs that have not ended, by id."""
    said = ask("squeue", "--noheader", "--array", f"--user={getpass.getuser()}", "--format=%i|%j|%T")
    rows = (line.split("|") for line in said.splitlines() if line.count("|") == 2)
    return {number: (name, state) for number, name, state in rows}


def why_it_ended(number: str) -> str:
    words = f"SLURM job {number} ended without a result"
    try:
        said = ask("sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={number}", "--format=State,ExitCode")
    except NoAnswer as trouble:  # a cluster without accounting
        return f"{words}; why, its log may tell ({trouble.reason})"
    state, _, status = said.strip().partition("|")
    code, _, killer = status.partition(":")
    detail = f"killed by signal {killer}" if killer not in ("", "0") else f"exit status {code}"
    return f"{words}: {state}, {detail}" if state else words


def ask(*question: str) -> str:
    """What one of SLURM's programs prints."""
    try:
        return subprocess.run(
            question, capture_output=True, text=True, check=True, timeout=SECONDS_FOR_AN_ANSWER
        ).stdout
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{question[0]} said nothing in {SECONDS_FOR_AN_ANSWER:.0f} s") from None
    except subprocess.CalledProcessError as error:
        raise NoAnswer(one_line(error.stderr)) from None
    except FileNotFoundError:
        raise NoAnswer(f"there is no {question[0]} here") from None


def keep_submission_log(job: Job, number: str) -> None:
    """What went wrong before the cell's process had a log of its own goes there too."""
    import submitit

    text = submitit.SlurmJob(submissions(), number).stdout() or ""
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("a", encoding="utf-8") as log:
        log.writelines(f"{line}\n" for line in text.splitlines()[-LINES_OF_A_SUBMISSION_LOG:])


def farewell(known: dict[Job, str]) -> str:
    arrays = sorted({number.partition("_")[0] for number in known.values()})
    return (
        f"The jobs go on in SLURM ({', '.join(arrays)}). Start the same command again to look at them and to take in "
        f"what is done; `squeue --jobs={','.join(arrays)}` shows them; `scancel {' '.join(arrays)}` cancels them, and "
        "their cells go on from their checkpoints next time."
    )
