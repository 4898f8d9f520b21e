"""One answer per record: as a line, in a CSV or JSON file, on a page of ECG paper."""

from __future__ import annotations

import csv
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safeecgmatch.errors import UserError
from safeecgmatch.files import atomic_path, write_json
from safeecgmatch.metrics import probabilities_of
from safeecgmatch.predicting.trained import RawAnswers, Trained

SEEN, UNSEEN = "seen", "unseen"
FORMATS = (".csv", ".json")


@dataclass(frozen=True)
class Answer:
    """`error` is the sentence for a record without an answer; the rest is then empty. `label` is known to some."""

    record: str
    error: str = ""
    predicted: str = ""
    probabilities: tuple[float, ...] = ()
    unseen_score: float = float("nan")
    verdict: str = ""
    note: str = ""
    label: str = ""

    @property
    def confidence(self) -> float:
        return max(self.probabilities)

    def line(self, width: int) -> str:
        score = f"unseen score {self.unseen_score:.3f}"
        note = f"  ({self.note})" if self.note else ""
        return (
            f"{self.record:{width}}  {self.predicted:6} {self.confidence:.3f}  {score}  {self.verdict:6}{note}".rstrip()
        )


def answers_of(
    trained: Trained, scores: RawAnswers, names: Sequence[str], notes: Sequence[str], labels: Sequence[str]
) -> list[Answer]:
    probabilities = probabilities_of(scores.log_probs)
    return [
        Answer(
            name,
            predicted=trained.classes[int(log_probs.argmax())],
            probabilities=tuple(values),
            unseen_score=float(unseen),
            verdict=SEEN if unseen <= trained.threshold else UNSEEN,
            note=note,
            label=label,
        )
        for name, note, label, log_probs, values, unseen in zip(
            names, notes, labels, scores.log_probs, probabilities.tolist(), scores.unseen, strict=True
        )
    ]


def describe(trained: Trained) -> dict[str, Any]:
    """What the answers come from, for the files that hold them."""
    return {
        "cell": trained.config["cell"],
        "protocol": trained.config["protocol"],
        "branch": trained.branch,
        "classes": list(trained.classes),
        "sampling_rate": trained.sampling_rate,
        "unseen_score": trained.summary["unseen_score"],
        "accept_share": trained.share,
        "accept_threshold": trained.threshold,
        "notice": trained.notice,
    }


def as_row(answer: Answer, trained: Trained) -> dict[str, Any]:
    """Flat, with exact numbers; None where there is no answer."""
    good = not answer.error
    probabilities = answer.probabilities if good else (None,) * len(trained.classes)
    return {
        "record": answer.record,
        "predicted": answer.predicted or None,
        "confidence": answer.confidence if good else None,
        "unseen_score": answer.unseen_score if good else None,
        "verdict": answer.verdict or None,
        **{f"p_{name}": value for name, value in zip(trained.classes, probabilities, strict=True)},
        "label": answer.label or None,
        "note": answer.note or None,
        "error": answer.error or None,
    }


@contextmanager
def writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{target} cannot be written ({error.strerror}): name another place.") from error


def check_places(output: Path | None, plots: Path | None) -> None:
    """Before the work, not after it."""
    if output is not None and output.suffix not in FORMATS:
        raise UserError(f"--output {output} ends neither in .csv nor in .json: name a file that does.")
    if output is not None and output.is_dir():
        raise UserError(f"--output {output} is a folder: name a file.")
    for target, folder in ((output, output and output.parent), (plots, plots)):
        if target is not None and folder is not None:
            with writing(target):
                folder.mkdir(parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=folder).close()


def write_answers(target: Path, answers: Sequence[Answer], trained: Trained, report: dict[str, Any] | None) -> None:
    """The notice stands in every line of a CSV, because lines are what gets copied from one."""
    rows = [as_row(answer, trained) for answer in answers]
    if target.suffix == ".json":
        with writing(target):
            write_json(target, {**describe(trained), "records": rows} | ({"labelled": report} if report else {}))
        return
    with writing(target), atomic_path(target) as partial, partial.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([*rows[0], "notice"])
        writer.writerows([*map(harmless, row.values()), trained.notice] for row in rows)


def harmless(cell: Any) -> Any:
    """A text that a spreadsheet would take for a formula, with the apostrophe that makes it a text there."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@")) else cell


def page_name(answer: Answer) -> str:
    """A record's name as a file name; folders are kept apart by underscores."""
    return re.sub(r"[^A-Za-z0-9.+-]+", "_", answer.record).strip("._") + ".png"


def draw_answer(folder: Path, answer: Answer, signal: NDArray[np.int16], trained: Trained) -> None:
    """The record as the network saw it, 25 mm/s and 10 mm/mV, with the verdict above and the notice below."""
    from PIL import Image, ImageDraw, ImageFont

    from safeecgmatch.data.ecg_pictures import INK, draw_strip

    strip = draw_strip(signal, trained.sampling_rate)
    margin, head, foot = 32, 72, 40
    page = Image.new("RGB", (strip.width + 2 * margin, strip.height + head + foot), "white")
    page.paste(strip, (margin, head))
    draw = ImageDraw.Draw(page)
    large, small = ImageFont.load_default(28), ImageFont.load_default(16)
    verdict = f"{answer.predicted}  {answer.confidence:.3f}" if answer.verdict == SEEN else "unseen: no class is given"
    detail = f"unseen score {answer.unseen_score:.3f}, accepted up to {trained.threshold:.3f}"
    note = ", ".join(part for part in (answer.record, answer.note) if part)
    draw.text((margin, 42), verdict, fill=INK, font=large, anchor="ls")
    draw.text((margin, 64), detail, fill=INK, font=small, anchor="ls")
    draw.text((page.width - margin, 42), note, fill=INK, font=small, anchor="rs")
    scale = f"{trained.sampling_rate} Hz, 25 mm/s, 10 mm/mV"
    draw.text((page.width - margin, 64), scale, fill=INK, font=small, anchor="rs")
    draw.text((margin, page.height - 14), trained.notice, fill=INK, font=small, anchor="ls")
    with writing(folder), atomic_path(folder / page_name(answer)) as partial:
        page.save(partial, format="PNG", compress_level=3)
