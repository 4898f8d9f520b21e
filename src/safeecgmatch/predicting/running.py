"""`safeecgmatch predict`: from records, folders and zips to questions; read ahead, answer batch by batch, print."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

from safeecgmatch.data.inventory import printable
from safeecgmatch.data.readers import Unreadable, read_record
from safeecgmatch.data.unzip import extract
from safeecgmatch.errors import UserError
from safeecgmatch.predicting import answers as answering
from safeecgmatch.predicting.answers import Answer
from safeecgmatch.predicting.conforming import Conformed, Refused, conform
from safeecgmatch.predicting.labelled import as_text, judge, labels_in
from safeecgmatch.predicting.trained import BATCH, CHANGED, Trained
from safeecgmatch.progress import Progress

HEADER = ".hea"
ANY_FILE = re.compile(r".+")
Labels = Callable[[Path], dict[str, str]]  # the classes of an archive's records, by the paths of their headers


@dataclass(frozen=True)
class Question:
    """One record to read; `label` is its class where that is known, `error` says why there is nothing to read."""

    title: str
    header: Path
    label: str = ""
    error: str = ""


def questions_in(argument: str, labels: Labels | None, stack: ExitStack) -> Iterator[Question]:
    """All records that an argument names; what is unpacked from a zip goes when the stack does."""
    path, name = Path(argument), printable(argument.rstrip("/"))
    if path.suffix.lower() == ".zip" and path.is_file():
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="safeecgmatch-")))
        extract(path, folder, ANY_FILE, f"unpack {printable(path.name)}")
        path = folder
    if path.is_dir():
        headers = labels(path) if labels else dict.fromkeys(headers_below(path), "")
        if not headers:
            yield Question(name, path, error="it holds no WFDB record (no .hea file)")
        for header, label in headers.items():
            yield Question(printable(f"{name}/{header.removesuffix(HEADER)}"), path / header, label)
    elif labels:
        raise UserError(f"--labels needs a whole archive as folder or zip, and {name} is one record.")
    else:
        record = path.with_suffix("") if path.suffix in (HEADER, ".dat", ".mat") else path
        yield Question(printable(str(record)), record.with_name(record.name + HEADER))


def headers_below(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob(f"*{HEADER}"))


@dataclass
class Portion:
    """A stretch of the records: a batch for the network, and the answers to those that cannot be used."""

    questions: list[Question] = field(default_factory=list)
    records: list[Conformed] = field(default_factory=list)
    bad: list[Answer] = field(default_factory=list)


def read_portion(questions: Sequence[Question], trained: Trained) -> Portion:
    portion = Portion()
    for question in questions:
        try:
            if question.error:
                raise Refused(question.error)
            portion.records.append(conform(read_record(question.header), trained.preparation))
            portion.questions.append(question)
        except (Refused, Unreadable) as error:
            portion.bad.append(answering.no_answer(trained, question.title, question.label, printable(str(error))))
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
    given = answering.answers_of(trained, trained.scores(portion.records)) if portion.records else []
    return [
        {"record": asked.title, **answer, "label": asked.label or None, "note": read.note or None, "error": None}
        for asked, read, answer in zip(portion.questions, portion.records, given, strict=True)
    ]


def predict(
    trained: Trained, arguments: Sequence[str], output: Path | None, plots: Path | None, labels: bool, out: TextIO
) -> int:
    """Answer every record that the arguments name; returns the number of those that got no answer."""
    answering.check_places(output, plots)
    known = partial(labels_in, dataset=trained.config["cell"]["dataset"], sampling_rate=trained.sampling_rate)
    answers: list[Answer] = []
    with ExitStack() as stack:
        asked = (questions_in(argument, known if labels else None, stack) for argument in arguments)
        questions = list(chain.from_iterable(asked))
        print(heading(trained), file=out)
        width = max((len(question.title) for question in questions), default=0)
        with Progress(len(questions), "predict", "records") as bar:
            # On a terminal the bar puts itself in the place of sys.stdout, and printed lines above itself.
            lines = sys.stdout if out.isatty() else out
            for portion in ahead(read_portions(questions, trained)):
                given = answer_portion(trained, portion)
                for answer in portion.bad:
                    print(f"{answer['record']}: {answer['error']}.", file=sys.stderr)
                for answer, record in zip(given, portion.records, strict=True):
                    print(answering.line(answer, width), file=lines)
                    if plots is not None:
                        answering.draw_answer(plots, answer, record.row, trained)
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
