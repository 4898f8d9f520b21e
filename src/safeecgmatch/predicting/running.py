"""`safeecgmatch predict`: read ahead, answer batch by batch, print as answers come."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from safeecgmatch.data.inventory import printable
from safeecgmatch.data.readers import Unreadable, read_record
from safeecgmatch.predicting import answers as answering
from safeecgmatch.predicting.answers import Answer
from safeecgmatch.predicting.conforming import Refused, conform
from safeecgmatch.predicting.labelled import as_text, judge, labels_in
from safeecgmatch.predicting.questions import Question, asked
from safeecgmatch.predicting.trained import BATCH, CHANGED, Trained
from safeecgmatch.progress import Progress


@dataclass
class Portion:
    """A stretch of the records: a batch for the network, and the answers to those that cannot be used."""

    rows: NDArray[np.int16]
    questions: list[Question] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)  # samples of each row before zero-padding
    bad: list[Answer] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)


def read_portion(questions: Sequence[Question], trained: Trained) -> Portion:
    portion = Portion(trained.blank_rows(len(questions)))
    for question in questions:
        row = portion.rows[len(portion.questions)]
        try:
            if question.error:
                raise Refused(question.error)
            length, note = conform(read_record(question.header), trained.preparation, row)
        except (Refused, Unreadable) as error:
            row[:] = 0
            portion.bad.append(answering.no_answer(trained, question.title, question.label, printable(str(error))))
            continue
        portion.questions.append(question)
        portion.notes.append(note)
        portion.lengths.append(length)
    portion.rows = portion.rows[: len(portion.questions)]
    portion.inputs = trained.inputs(portion.rows, portion.lengths)
    return portion


def read_portions(questions: Sequence[Question], trained: Trained) -> Iterator[Portion]:
    for start in range(0, len(questions), BATCH):
        yield read_portion(questions[start : start + BATCH], trained)


def ahead(portions: Iterator[Portion]) -> Iterator[Portion]:
    """The same portions, each read by another thread while the network works on the one before."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, portions, None)
        while (portion := coming.result()) is not None:
            coming = reader.submit(next, portions, None)
            yield portion


def answer_portion(trained: Trained, portion: Portion) -> list[Answer]:
    given = answering.answers_of(trained, trained.scores(portion.inputs)) if portion.questions else []
    return [
        {"record": question.title, **answer, "label": question.label or None, "note": note or None, "error": None}
        for question, note, answer in zip(portion.questions, portion.notes, given, strict=True)
    ]


def predict(
    trained: Trained, arguments: Sequence[str], output: Path | None, plots: Path | None, labels: bool, out: TextIO
) -> int:
    """Answer every record that the arguments name; returns the number of those that got no answer."""
    answering.check_places(output, plots)
    known = partial(labels_in, dataset=trained.config["cell"]["dataset"], sampling_rate=trained.sampling_rate)
    answers: list[Answer] = []
    with asked(arguments, known if labels else None) as questions:
        print(heading(trained), file=out)
        width = max((len(question.title) for question in questions), default=0)
        with Progress(len(questions), "predict", "records") as bar:
            # On a terminal the bar puts itself in the place of sys.stdout, and printed lines above itself.
            lines = sys.stdout if out.isatty() else out
            for portion in ahead(read_portions(questions, trained)):
                given = answer_portion(trained, portion)
                for answer in portion.bad:
                    print(f"{answer['record']}: {answer['error']}.", file=sys.stderr)
                for answer, row in zip(given, portion.rows, strict=True):
                    print(answering.line(answer, width), file=lines)
                    if plots is not None:
                        answering.draw_answer(plots, answer, row, trained)
                answers += [*portion.bad, *given]
                bar.advance(len(portion.bad) + len(given))
    judged = [answer for answer in answers if answer["label"] and not answer["error"]]
    report = judge(judged, trained.classes) if judged else None
    if report:
        print(as_text(report), file=out)
    if output is not None:
        answering.write_answers(output, answers, trained, report)
    return sum(bool(answer["error"]) for answer in answers)


def heading(trained: Trained) -> str:
    """What the columns of the lines mean, and what they must not be used for."""
    changed = f"# {CHANGED}\n" if trained.code_changed else ""
    return (
        f"# {trained.notice}\n{changed}"
        f"# record, class ({', '.join(trained.classes)}), calibrated confidence, unseen score, seen or unseen\n"
        f"# unseen score: {trained.summary['unseen_score']}; up to {trained.threshold:.4f} a record is seen, as are "
        f"{100 * trained.share:g} % of the validation records of these classes"
    )
