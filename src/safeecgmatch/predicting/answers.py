"""One answer per record: as a line, in a CSV or JSON file, on a page of ECG paper."""

from __future__ import annotations

import csv
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


Answer = dict[str, Any]  # one row of the files: plain values, None where there is none


def answers_of(trained: Trained, scores: RawAnswers) -> list[Answer]:
    """What the network says of each record, without what the caller knows of it."""
    return [
        {
            "predicted": trained.classes[int(log_probs.argmax())],
            "confidence": max(values),
            "unseen_score": float(unseen),
            "verdict": SEEN if unseen <= trained.threshold else UNSEEN,
            **dict(zip(probability_columns(trained), values, strict=True)),
        }
        for log_probs, values, unseen in zip(
            scores.log_probs, probabilities_of(scores.log_probs).tolist(), scores.unseen, strict=True
        )
    ]


def no_answer(trained: Trained, record: str, label: str, error: str) -> Answer:
    """Of a record that cannot be used; `error` is one sentence about it."""
    empty = dict.fromkeys(("predicted", "confidence", "unseen_score", "verdict", *probability_columns(trained)))
    return {"record": record, **empty, "label": label or None, "note": None, "error": error}


def probability_columns(trained: Trained) -> list[str]:
    return [f"p_{name}" for name in trained.classes]


def line(answer: Answer, width: int) -> str:
    score, note = f"unseen score {answer['unseen_score']:.3f}", f"  ({answer['note']})" if answer["note"] else ""
    predicted = f"{answer['predicted']:6} {answer['confidence']:.3f}"
    return f"{answer['record']:{width}}  {predicted}  {score}  {answer['verdict']:6}{note}".rstrip()


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
    if target.suffix == ".json":
        with writing(target):
            write_json(target, {**describe(trained), "records": answers} | ({"labelled": report} if report else {}))
        return
    with writing(target), atomic_path(target) as partial, partial.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([*answers[0], "notice"])
        writer.writerows([*map(harmless, row.values()), trained.notice] for row in answers)


def harmless(cell: Any) -> Any:
    """A text that a spreadsheet would take for a formula, with the apostrophe that makes it a text there."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@")) else cell


def page_name(record: str) -> str:
    """A record's name as a file name; folders are kept apart by underscores."""
    return re.sub(r"[^A-Za-z0-9.+-]+", "_", record).strip("._") + ".png"


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
    named = f"{answer['predicted']}  {answer['confidence']:.3f}"
    verdict = named if answer["verdict"] == SEEN else "unseen: no class is given"
    detail = f"unseen score {answer['unseen_score']:.3f}, accepted up to {trained.threshold:.3f}"
    note = ", ".join(filter(None, (answer["record"], answer["note"])))
    draw.text((margin, 42), verdict, fill=INK, font=large, anchor="ls")
    draw.text((margin, 64), detail, fill=INK, font=small, anchor="ls")
    draw.text((page.width - margin, 42), note, fill=INK, font=small, anchor="rs")
    scale = f"{trained.sampling_rate} Hz, 25 mm/s, 10 mm/mV"
    draw.text((page.width - margin, 64), scale, fill=INK, font=small, anchor="rs")
    draw.text((margin, page.height - 14), trained.notice, fill=INK, font=small, anchor="ls")
    with writing(folder), atomic_path(folder / page_name(answer["record"])) as partial:
        page.save(partial, format="PNG", compress_level=3)
