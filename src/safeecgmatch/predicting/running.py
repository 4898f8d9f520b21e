"""`safeecgmatch predict`: read ahead, answer batch by batch, print as answers come."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from safeecgmatch.data.inventory import printable
from safeecgmatch.data.readers import Unreadable, read_record
from safeecgmatch.errors import UserError
from safeecgmatch.predicting.answers import Answer, answers_of, check_places, draw_answer, write_answers
from safeecgmatch.predicting.conforming import Refused, conform
from safeecgmatch.predicting.labelled import as_text, judge, labels_in
from safeecgmatch.predicting.recordings import Place, opened
from safeecgmatch.predicting.trained import BATCH, CHANGED, Trained
from safeecgmatch.progress import Progress


@dataclass(frozen=True)
class Job:
    """One record to read; `label` is its class where that is known."""

    title: str
    header: Path
    label: str = ""


@dataclass
class Block:
    """A batch for the network, and the records of its stretch that cannot be used."""

    jobs: list[Job] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)  # samples of each row before zero-padding
    bad: list[Answer] = field(default_factory=list)
    rows: NDArray[np.int16] = field(default_factory=lambda: np.empty(0, dtype=np.int16))
    inputs: list[Tensor] = field(default_factory=list)


def list_jobs(places: Sequence[Place], trained: Trained, labels: bool) -> Iterator[Job | Answer]:
    """All records of all places; with `labels` those of an archive that have exactly one class."""
    for place in places:
        if not labels:
            headers = dict.fromkeys(place.headers(), "")
        elif place.record is None:
            headers = labels_in(place.folder, trained.config["cell"]["dataset"], trained.sampling_rate)
        else:
            raise UserError(f"--labels needs a whole archive as folder or zip, and {place.name} is one record.")
        if not headers:
            yield Answer(place.name, error="it holds no WFDB record (no .hea file)")
        for header, label in headers.items():
            yield Job(place.title(header), place.folder / header, label)


def read_blocks(jobs: Sequence[Job], trained: Trained) -> Iterator[Block]:
    """Full batches of usable records, the last one smaller."""
    left = iter(jobs)
    while True:
        block, rows = Block(), trained.blank_rows(BATCH)
        for job in left:
            row = rows[len(block.jobs)]
            try:
                fit, note = conform(read_record(job.header), trained.preparation, row)
            except (Refused, Unreadable) as error:
                row[:] = 0
                block.bad.append(Answer(job.title, error=printable(str(error)), label=job.label))
                continue
            block.jobs.append(job)
            block.notes.append(note)
            block.lengths.append(fit.length)
            if len(block.jobs) == BATCH:
                break
        if not block.jobs and not block.bad:
            return
        block.rows = rows[: len(block.jobs)]
        block.inputs = trained.inputs(block.rows, block.lengths)
        yield block


def ahead(blocks: Iterator[Block]) -> Iterator[Block]:
    """The same blocks, each read by another thread while the network works on the one before."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, blocks, None)
        while (block := coming.result()) is not None:
            coming = reader.submit(next, blocks, None)
            yield block


def answer_block(trained: Trained, block: Block) -> list[Answer]:
    if not block.jobs:
        return []
    names, labels = [job.title for job in block.jobs], [job.label for job in block.jobs]
    return answers_of(trained, trained.scores(block.inputs), names, block.notes, labels)


def complain(answers: Sequence[Answer]) -> None:
    for answer in answers:
        print(f"{answer.record}: {answer.error}.", file=sys.stderr)


def predict(
    trained: Trained, arguments: Sequence[str], output: Path | None, plots: Path | None, labels: bool, out: TextIO
) -> int:
    """Answer every record that the arguments name; returns the number of those that got no answer."""
    check_places(output, plots)
    with opened(arguments) as places:
        listed = list(list_jobs(places, trained, labels))
        jobs = [entry for entry in listed if isinstance(entry, Job)]
        answers = [entry for entry in listed if isinstance(entry, Answer)]
        complain(answers)
        print(heading(trained), file=out)
        width = max((len(job.title) for job in jobs), default=0)
        with Progress(len(jobs), "predict", "records") as bar:
            # On a terminal the bar puts itself in the place of sys.stdout, and printed lines above itself.
            lines = sys.stdout if out.isatty() else out
            for block in ahead(read_blocks(jobs, trained)):
                given = answer_block(trained, block)
                complain(block.bad)
                for answer, row in zip(given, block.rows, strict=True):
                    print(answer.line(width), file=lines)
                    if plots is not None:
                        draw_answer(plots, answer, row, trained)
                answers += [*block.bad, *given]
                bar.advance(len(block.bad) + len(given))
    judged = [answer for answer in answers if answer.label and not answer.error]
    report = judge(judged, trained.classes) if judged else None
    if report:
        print(as_text(report), file=out)
    if output is not None:
        write_answers(output, answers, trained, report)
    return sum(bool(answer.error) for answer in answers)


def heading(trained: Trained) -> str:
    """What the columns of the lines mean, and what they must not be used for."""
    changed = f"# {CHANGED}\n" if trained.code_changed else ""
    return (
        f"# {trained.notice}\n{changed}"
        f"# record, class ({', '.join(trained.classes)}), calibrated confidence, unseen score, seen or unseen\n"
        f"# unseen score: {trained.summary['unseen_score']}; up to {trained.threshold:.4f} a record is seen, as are "
        f"{100 * trained.share:g} % of the validation records of these classes"
    )
