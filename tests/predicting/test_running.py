"""`safeecgmatch predict` from its arguments to its lines, files, pages and exit status."""

from __future__ import annotations

import csv
import errno
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from safeecgmatch.cli import app
from safeecgmatch.errors import UserError
from safeecgmatch.metrics import probabilities_of
from safeecgmatch.predicting.answers import Answer, page_name
from safeecgmatch.predicting.labelled import judge
from safeecgmatch.predicting.trained import GENERATED, NO_DEVICE
from safeecgmatch.predictions import read_arrays
from tests.data.tiny import waves, write_record
from tests.predicting.conftest import Made

NOTICE = f"{GENERATED} {NO_DEVICE}"


def predict(made: Made, *arguments: object) -> Result:
    return CliRunner().invoke(app, ["predict", str(made.folder), *map(str, arguments)])


def lines(result: Result) -> list[str]:
    return [line for line in result.stdout.splitlines() if not line.startswith("#")]


@pytest.fixture
def records(made: Made, tmp_path: Path) -> Path:
    """Five records of the test set in a folder of their own."""
    folder = tmp_path / "records"
    (folder / "ward").mkdir(parents=True)
    for header in made.headers("test")[:5]:
        for file in header.parent.glob(f"{header.stem}.*"):
            shutil.copy(file, folder / "ward")
    return folder


def test_one_line_per_record_and_the_notice(made: Made, records: Path) -> None:
    result = predict(made, records)
    assert result.exit_code == 0, result.output
    names = sorted(file.stem for file in records.rglob("*.hea"))
    assert [line.split()[0] for line in lines(result)] == [f"{records}/ward/{name}" for name in names]
    assert all(line.endswith(("  seen", "  unseen")) and "unseen score 0." in line for line in lines(result))
    assert result.stdout.startswith(f"# {NOTICE}\n")
    assert "95 % of the validation records" in result.stdout and "# unseen score: the method's own" in result.stdout


def test_a_cell_of_other_code_is_told(made: Made, records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "code that decides" not in predict(made, records).stdout
    monkeypatch.setattr("safeecgmatch.predicting.trained.code_of", lambda module: {"changed": module})
    assert "# The code that decides predictions has changed" in predict(made, records).stdout


def test_the_files_hold_the_exact_probabilities_of_the_training(made: Made, tmp_path: Path) -> None:
    stored = read_arrays(made.folder / "predictions.npz")
    expected = probabilities_of(stored[f"test.log_probs.{stored['branch']}"]).tolist()
    for file in (tmp_path / "answers.csv", tmp_path / "answers.json"):
        assert predict(made, *made.headers("test"), "--output", file).exit_code == 0
        if file.suffix == ".json":
            content = json.loads(file.read_text())
            rows, notices = content["records"], {content["notice"]}
            assert content["accept_share"] == 0.95 and content["classes"] == ["NORM", "MI", "CD"]
        else:
            rows = list(csv.DictReader(file.open()))
            notices = {row["notice"] for row in rows}
        assert [[float(row[f"p_{name}"]) for name in ("NORM", "MI", "CD")] for row in rows] == expected
        assert notices == {NOTICE}


def test_a_zip_gives_what_its_folder_gives(made: Made, records: Path, tmp_path: Path) -> None:
    archive = Path(shutil.make_archive(str(tmp_path / "ecgs"), "zip", records))
    unpacked, zipped = lines(predict(made, records)), lines(predict(made, archive))
    assert [line.replace(str(archive), str(records)) for line in zipped] == unpacked


def test_bad_records_get_a_sentence_each_and_the_others_go_on(made: Made, records: Path, tmp_path: Path) -> None:
    (empty := tmp_path / "empty").mkdir()
    values = waves(1, 1000)
    write_record(records / "short.hea", values[:90])
    flat = values.copy()
    flat[:, 5] = 7
    write_record(records / "flat.hea", flat)
    holes = values.copy()
    holes[3, 0] = -32768
    write_record(records / "holes.hea", holes)
    write_record(records / "cut.hea", values)
    (records / "cut.dat").write_bytes(b"\0" * 100)
    (records / "noise.hea").write_text("this is no header\n")
    result = predict(made, records, tmp_path / "gone", empty, "-o", tmp_path / "out.json")
    assert result.exit_code == 1
    assert len(lines(result)) == 5
    sentences = dict(line.split(": ", 1) for line in result.stderr.splitlines() if not line.startswith("predict:"))
    assert sentences[f"{records}/short"] == "too short: 90 samples at 100 Hz."
    assert sentences[f"{records}/flat"] == "flat lead: lead aVF."
    assert "1 missing samples, the first at sample 3, lead I" in sentences[f"{records}/holes"]
    assert "cut.dat holds 4 samples per lead, its header says 1000" in sentences[f"{records}/cut"]
    assert "cannot be read by wfdb" in sentences[f"{records}/noise"]
    assert sentences[str(tmp_path / "gone")] == "gone.hea is missing."
    assert "no WFDB record" in sentences[str(empty)]
    rows = json.loads((tmp_path / "out.json").read_text())["records"]
    assert sum(row["error"] is not None for row in rows) == 7 and len(rows) == 12
    assert all((row["predicted"] is None) == (row["error"] is not None) for row in rows)


CONTROL = "\x1b]0;owned\x07\x1b[2J\u202e"


def test_names_do_not_command_the_terminal(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a record's nor a folder's nor a zip's, nor a lead's in a header."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / f"ward{CONTROL}"
    values = waves(1, 1000)
    header = write_record(folder / "good.hea", values)
    write_record(folder / "lead.hea", values)
    (folder / "lead.hea").write_text(header.read_text().replace("good", "lead").replace(" V6", f" V{CONTROL}"))
    write_record(folder / f"bad{CONTROL}.hea", values)
    archive = Path(shutil.make_archive(f"zip{CONTROL}", "zip", folder))
    for arguments in ([folder.name], [archive.name], [f"{folder.name}/good.hea"], [f"gone{CONTROL}"]):
        result = predict(made, *arguments, "-o", "out.csv")
        printed = result.output + (str(result.exception) if isinstance(result.exception, UserError) else "")
        written = Path("out.csv").read_text(encoding="utf-8")
        assert all(letter.isprintable() or letter == "\n" for letter in printed + written), arguments
        assert "\\x1b]0;owned\\x07" in printed and "\\u202e" in printed
    assert "(its signals are named: I, II, III" in predict(made, folder.name).stderr


def test_a_name_is_no_formula_in_a_csv(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["=cmd|calc", "+1", "-1", "@x"]
    for name in names:
        write_record(tmp_path / f"{name}.hea", waves(1, 1000), file="a.dat", line="a 12 100 1000")
    shutil.move("=cmd|calc.dat", "a.dat")
    predict(made, "--output", "out.csv", "--", *names, "=gone")
    rows = list(csv.DictReader(Path("out.csv").read_text().splitlines()))
    assert sorted(row["record"] for row in rows) == sorted(f"'{name}" for name in (*names, "=gone"))
    assert {row["error"] for row in rows} == {"", "'=gone.hea is missing"}
    assert all(not value.startswith(("=", "+", "-", "@")) for row in rows for value in row.values())


def test_nothing_but_bad_records(made: Made, tmp_path: Path) -> None:
    result = predict(made, tmp_path / "gone", "--output", tmp_path / "out.csv")
    assert result.exit_code == 1 and lines(result) == []
    [row] = csv.DictReader((tmp_path / "out.csv").open())
    assert row["error"] == "gone.hea is missing"


def test_another_share_moves_the_threshold(made: Made) -> None:
    headers = made.headers("validation")
    verdicts = [line.split()[6] for line in lines(predict(made, *headers, "--accept", 0.5))]
    assert verdicts.count("seen") == -(-len(headers) // 2)
    assert predict(made, headers[0], "--accept", 1.5).exit_code == 2


def test_an_output_of_unknown_form_is_refused_before_the_work(made: Made, records: Path) -> None:
    result = predict(made, records, "--output", "answers.xlsx")
    assert isinstance(result.exception, UserError) and "neither in .csv nor in .json" in str(result.exception)
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("option", "place"),
    [("--output", "/proc/x.csv"), ("--output", "file/x.json"), ("--output", "d.csv"), ("--plot", "file"),
     ("--plot", "/proc/x"), ("--plot", "file/pages")],
)  # fmt: skip
def test_a_place_that_cannot_be_written_is_said_before_the_work(
    made: Made, records: Path, tmp_path: Path, option: str, place: str
) -> None:
    (tmp_path / "file").write_text("params")
    (tmp_path / "d.csv").mkdir()
    result = predict(made, records, option, tmp_path / place)
    assert isinstance(result.exception, UserError) and str(tmp_path / place) in str(result.exception)
    assert result.stdout == "" and (tmp_path / "file").read_text() == "params"


def test_a_disk_that_fills_up_is_one_sentence(
    made: Made, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("safeecgmatch.predicting.answers.atomic_path", full)
    for option, place in (("--output", "x.csv"), ("--plot", "pages")):
        result = predict(made, records, option, tmp_path / place)
        assert isinstance(result.exception, UserError) and "No space left on device" in str(result.exception)


def test_a_page_per_record(made: Made, records: Path, tmp_path: Path) -> None:
    from PIL import Image

    assert predict(made, records, "--plot", tmp_path / "pages").exit_code == 0
    pages = sorted((tmp_path / "pages").iterdir())
    assert len(pages) == 5
    with Image.open(pages[0]) as page:
        assert page.format == "PNG" and page.width > 1000
    assert page_name("../a b/00001_lr") == "a_b_00001_lr.png"


def test_labels_say_how_good_the_refusal_is(made: Made, tmp_path: Path) -> None:
    result = predict(made, made.archive, "--labels", "-o", tmp_path / "out.json")
    content = json.loads((tmp_path / "out.json").read_text())
    report, rows = content["labelled"], [row for row in content["records"] if row["error"] is None]
    assert result.exit_code == 1 and len(rows) < len(content["records"]), "the phantom has damaged records on purpose"
    right = [row["predicted"] == row["label"] for row in rows if row["verdict"] == "seen"]
    assert report["accuracy_on_accepted"] == pytest.approx(np.mean(right))
    assert report["coverage"] == pytest.approx(len(right) / len(rows))
    assert {row["label"] for row in rows} == {"NORM", "MI", "CD", "STTC", "HYP"}
    assert f"curve: {report['aurc']:.4f}." in result.stdout
    single = predict(made, made.headers("test")[0], "--labels")
    assert isinstance(single.exception, UserError) and "--labels needs a whole archive" in str(single.exception)


def answered(label: str, predicted: str, verdict: str, score: float) -> Answer:
    return {"label": label, "predicted": predicted, "verdict": verdict, "unseen_score": score}


def test_an_accepted_record_of_an_unseen_class_is_an_error() -> None:
    answers: Sequence[Answer] = [
        answered("A", "A", "seen", 0.1), answered("B", "A", "seen", 0.2), answered("X", "A", "seen", 0.3),
        answered("B", "B", "unseen", 0.8), answered("X", "B", "unseen", 0.9),
    ]  # fmt: skip
    report = judge(answers, ["A", "B"])
    assert report["accuracy_on_accepted"] == pytest.approx(1 / 3)
    assert report["accuracy_on_accepted_of_seen_classes"] == 0.5
    assert (report["coverage"], report["seen_accepted"], report["unseen_refused"]) == (0.6, 2 / 3, 0.5)
    assert report["acc_refusing_0"] == pytest.approx(0.4)
    assert report["acc_refusing_40"] == pytest.approx(1 / 3)
    only_seen = judge(answers[:1], ["A", "B"])
    assert only_seen["unseen_refused"] is None and only_seen["aurc"] == 0
