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
class Question:
    """One record to read; `label` is its class where that is known."""

    title: str
    header: Path
    label: str = ""


@dataclass
class Portion:
    """A batch for the network, and the records of its stretch that cannot be used."""

    questions: list[Question] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)  # samples of each row before zero-padding
    bad: list[Answer] = field(default_factory=list)
    rows: NDArray[np.int16] = field(default_factory=lambda: np.empty(0, dtype=np.int16))
    inputs: list[Tensor] = field(default_factory=list)


def list_questions(places: Sequence[Place], trained: Trained, labels: bool) -> Iterator[Question | Answer]:
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
            yield Question(place.title(header), place.folder / header, label)


def read_portions(questions: Sequence[Question], trained: Trained) -> Iterator[Portion]:
    """Full batches of usable records, the last one smaller."""
    left = iter(questions)
    while True:
        portion, rows = Portion(), trained.blank_rows(BATCH)
        for question in left:
            row = rows[len(portion.questions)]
            try:
                fit, note = conform(read_record(question.header), trained.preparation, row)
            except (Refused, Unreadable) as error:
                row[:] = 0
                portion.bad.append(Answer(question.title, error=printable(str(error)), label=question.label))
                continue
            portion.questions.append(question)
            portion.notes.append(note)
            portion.lengths.append(fit.length)
            if len(portion.questions) == BATCH:
                break
        if not portion.questions and not portion.bad:
            return
        portion.rows = rows[: len(portion.questions)]
        portion.inputs = trained.inputs(portion.rows, portion.lengths)
        yield portion


def ahead(portions: Iterator[Portion]) -> Iterator[Portion]:
    """The same portions, each read by another thread while the network works on the one before."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, portions, None)
        while (portion := coming.result()) is not None:
            coming = reader.submit(next, portions, None)
            yield portion


def answer_portion(trained: Trained, portion: Portion) -> list[Answer]:
    if not portion.questions:
        return []
    names = [question.title for question in portion.questions]
    labels = [question.label for question in portion.questions]
    return answers_of(trained, trained.scores(portion.inputs), names, portion.notes, labels)


def complain(answers: Sequence[Answer]) -> None:
    for answer in answers:
        print(f"{answer.record}: {answer.error}.", file=sys.stderr)


def predict(
    trained: Trained, arguments: Sequence[str], output: Path | None, plots: Path | None, labels: bool, out: TextIO
) -> int:
    """Answer every record that the arguments name; returns the number of those that got no answer."""
    check_places(output, plots)
    with opened(arguments) as places:
        listed = list(list_questions(places, trained, labels))
        questions = [entry for entry in listed if isinstance(entry, Question)]
        answers = [entry for entry in listed if isinstance(entry, Answer)]
        complain(answers)
        print(heading(trained), file=out)
        width = max((len(question.title) for question in questions), default=0)
        with Progress(len(questions), "predict", "records") as bar:
            # On a terminal the bar puts itself in the place of sys.stdout, and printed lines above itself.
            lines = sys.stdout if out.isatty() else out
            for portion in ahead(read_portions(questions, trained)):
                given = answer_portion(trained, portion)
                complain(portion.bad)
                for answer, row in zip(given, portion.rows, strict=True):
                    print(answer.line(width), file=lines)
                    if plots is not None:
                        draw_answer(plots, answer, row, trained)
                answers += [*portion.bad, *given]
                bar.advance(len(portion.bad) + len(given))
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
