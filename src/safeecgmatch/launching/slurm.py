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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safeecgmatch.errors import UserError
from safeecgmatch.files import read_json, write_json
from safeecgmatch.launching.cluster import Cluster
from safeecgmatch.launching.jobs import Detached, Failure, Job, Means, Report, command, last_lines
from safeecgmatch.launching.registry import need
from safeecgmatch.launching.scratch import Scratch, scratch_root

NAME = "slurm.json"  # in a cell's folder: the job that trains it
SECONDS_BETWEEN_QUESTIONS = 5.0
SECONDS_FOR_AN_ANSWER = 25.0
ABSENCES = 3  # questions in a row without the job: shared folders show a result with some delay
TIME_LIMITS = 10_000  # how often a cell may reach its time limit; it goes on from its checkpoint each time
LINES_OF_A_SUBMISSION_LOG = 20


@dataclass
class Task:
    """What submitit runs on a node: the cell as a process of its own, from the snapshot."""

    arguments: list[str]
    environment: dict[str, str]
    folder: Path
    log: Path
    process: subprocess.Popen[bytes] | None = field(default=None, init=False, compare=False)

    def __call__(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.arguments,
                env=os.environ | self.environment | {"SAFEECGMATCH_PARENT": str(os.getpid())},
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
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
        return DelayedSubmission(Task(self.arguments, self.environment, self.folder, self.log))


def check(cluster: Cluster) -> None:
    """One sentence where nothing can be submitted, and one where less will be known."""
    need("submitit", "slurm")
    for program in ("sbatch", "squeue", "scancel", "scontrol", "srun"):  # the last, which is not used, for submitit
        if shutil.which(program) is None:
            raise UserError(f"--on slurm needs SLURM's {program}, which is not here: run this on a login node.")
    asked_queue()
    if trouble := trouble_with_accounts():
        print(f"{trouble}; why a job ended is then known from its cell's log alone.", file=sys.stderr)


def launch(jobs: Sequence[Job], report: Report, means: Means) -> list[Failure]:
    queue = asked_queue()
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
    note = job.folder / NAME
    if not note.exists():
        return ""
    told = read_json(note)
    name, _ = queue.get(told["id"], ("", ""))
    return told["id"] if name == told["name"] else ""  # ids begin anew where SLURM's state was lost


def submit(jobs: Sequence[Job], means: Means) -> dict[Job, str]:
    """The SLURM job of every cell, noted in the cell's folder."""
    if not jobs:
        return {}
    import submitit
    from submitit.core.utils import FailedJobError

    name = f"safeecgmatch-{means.snapshot.name}"
    executor = submitit.SlurmExecutor(
        folder=scratch_root() / "slurm",
        max_num_timeout=TIME_LIMITS,
        python=f"exec {shlex.quote(sys.executable)}",  # in the shell's place, where SLURM's signals arrive
    )
    executor.update_parameters(**parameters(means, name, len(jobs)))
    tasks = []
    for job in jobs:
        job.folder.mkdir(parents=True, exist_ok=True)
        job.log.unlink(
            missing_ok=True
        )  # a requeued job appends to its log; that of an earlier submission tells nothing
        arguments, environment, folder = command(job, means)
        tasks.append(Task(arguments, environment, folder, job.log))
    # Jobs without their notes would be submitted a second time: no interrupt in between.
    handlers = {which: signal.signal(which, signal.SIG_IGN) for which in (signal.SIGINT, signal.SIGTERM)}
    try:
        with executor.batch():
            submitted = [executor.submit(task) for task in tasks]
        ids = {job: entry.job_id for job, entry in zip(jobs, submitted, strict=True)}
        for job, number in ids.items():
            write_json(job.folder / NAME, {"id": number, "name": name})
    except FailedJobError as error:
        raise UserError(f"SLURM took no job ({one_line(str(error))}): look at cluster.yaml.") from None
    finally:
        for which, handler in handlers.items():
            signal.signal(which, handler)
    return ids


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
        # submitit unpickles a Task: of the snapshot, like all the rest
        "setup": [f"export PYTHONPATH={shlex.quote(str(means.snapshot / 'src'))}"],
        "additional_parameters": {
            "mem": wanted.memory,
            "requeue": True,
            "signal": f"B:USR2@{min(wanted.warning_seconds, wanted.minutes * 30)}",
            **wanted.options,
        },
    }


def follow(known: dict[Job, str], report: Report) -> list[Failure]:
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
        queue = ask_queue()
        if isinstance(queue, str):
            if not silent:
                print(f"SLURM does not answer ({queue}); waiting until it does.", file=sys.stderr)
            silent = True
            continue
        silent = False
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
            (job.folder / NAME).unlink(missing_ok=True)
            if failure is None:
                clear(number, state)
            report.finished(job, failure)
    return failures


def asked_queue() -> dict[str, tuple[str, str]]:
    queue = ask_queue()
    if isinstance(queue, str):
        raise UserError(f"SLURM does not answer ({queue}): look with `squeue`, or ask those who run the cluster.")
    return queue


def ask_queue() -> dict[str, tuple[str, str]] | str:
    """Name and state of this user's jobs that have not ended, by id; or why there is no answer."""
    question = ["squeue", "--noheader", "--array", f"--user={getpass.getuser()}", "--format=%i|%j|%T"]
    answer = ask(question)
    if answer.returncode != 0:
        return one_line(answer.stderr)
    rows = (line.split("|") for line in answer.stdout.splitlines() if line.count("|") == 2)
    return {number: (name, state) for number, name, state in rows}


def trouble_with_accounts() -> str:
    """Why sacct tells nothing here, or nothing."""
    if shutil.which("sacct") is None:
        return "SLURM's sacct is not here"
    answer = ask(["sacct", "--noheader", "--allocations", "--starttime=now", "--format=JobID"])
    return "" if answer.returncode == 0 else f"SLURM's sacct tells nothing ({one_line(answer.stderr)})"


def why_it_ended(number: str) -> str:
    words = f"SLURM job {number} ended without a result"
    if shutil.which("sacct") is None:
        return words
    answer = ask(["sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={number}", "--format=State,ExitCode"])
    state, _, status = answer.stdout.strip().partition("|")
    if answer.returncode != 0 or not state:
        return words
    code, _, killer = status.partition(":")
    detail = f"killed by signal {killer}" if killer not in ("", "0") else f"exit status {code}"
    return f"{words}: {state}, {detail}"


def ask(question: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(question, capture_output=True, text=True, check=False, timeout=SECONDS_FOR_AN_ANSWER)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(
            question, 1, "", f"{question[0]} said nothing in {SECONDS_FOR_AN_ANSWER:.0f} s"
        )


def one_line(text: str) -> str:
    return " ".join(text.split()) or "no message"


def submission_files(number: str) -> list[Path]:
    return sorted((scratch_root() / "slurm").glob(f"{number}_*"))


def keep_submission_log(job: Job, number: str) -> None:
    """What went wrong before the cell's process had a log of its own goes there too."""
    for file in submission_files(number):
        if file.suffix == ".out":
            job.log.parent.mkdir(parents=True, exist_ok=True)
            with job.log.open("a", encoding="utf-8") as log:
                log.writelines(f"{line}\n" for line in last_lines(file, LINES_OF_A_SUBMISSION_LOG))


def clear(number: str, state: str) -> None:
    """What is left of the job of a finished cell: its files, and itself if it was requeued in the last moment."""
    if state == "PENDING":
        ask(["scancel", number])
    for file in submission_files(number):
        file.unlink(missing_ok=True)


def farewell(known: dict[Job, str]) -> str:
    arrays = sorted({number.partition("_")[0] for number in known.values()})
    return (
        f"The jobs go on in SLURM ({', '.join(arrays)}). Start the same command again to look at them and to take in "
        f"what is done; `squeue --jobs={','.join(arrays)}` shows them; `scancel {' '.join(arrays)}` cancels them, and "
        "their cells go on from their checkpoints next time."
    )
