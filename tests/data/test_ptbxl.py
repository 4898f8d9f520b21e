from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from safeecgmatch.data.datasets import ptbxl
from safeecgmatch.data.preparation import prepare, resample
from safeecgmatch.data.readers import Archive, read_record
from safeecgmatch.data.selection import is_safe
from safeecgmatch.errors import UserError
from tests.data.tiny import write_csv, write_ptbxl
from tests.data.trees import PTBXL


def name_of(number: int) -> str:
    return f"records100/00000/{number:05d}_lr"


def verdicts(folder: Path, *rows: tuple[object, str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Labels of the kept records, reasons of the dropped ones."""
    write_ptbxl(folder, rows)
    selected = ptbxl.select(Archive(folder), 100)
    return {c.record: c.label for c in selected.candidates}, {d.record: d.reason for d in selected.dropped}


def test_all_likelihoods_count_and_other_statements_do_not(tmp_path: Path) -> None:
    kept, dropped = verdicts(
        tmp_path,
        (1, "{'NORM': 100.0, 'SR': 0.0}", name_of(1)),
        (2, "{'IMI': 0.0}", name_of(2)),
        (3, "{'NORM': 100.0, 'LVH': 0.0}", name_of(3)),
        (4, "{'SR': 0.0}", name_of(4)),
        (5, "{}", name_of(5)),
    )
    assert kept == {"1": "NORM", "2": "MI"}
    assert dropped == {"3": "multi-label", "4": "no label", "5": "no label"}


def test_two_codes_of_one_superclass_are_one_label(tmp_path: Path) -> None:
    write_ptbxl(tmp_path, [(1, "{'IMI': 100.0, 'AMI': 15.0}", name_of(1))])
    rows = [("IMI", "1.0", "MI"), ("AMI", "1.0", "MI")]
    write_csv(tmp_path / "scp_statements.csv", ["", "diagnostic", "diagnostic_class"], rows)
    assert [candidate.label for candidate in ptbxl.select(Archive(tmp_path), 100).candidates] == ["MI"]


def test_rows_are_in_ascending_ecg_id_as_a_number(tmp_path: Path) -> None:
    kept, _ = verdicts(tmp_path, *((n, "{'NORM': 1.0}", name_of(n)) for n in (10, 9, 100, 2)))
    assert list(kept) == ["2", "9", "10", "100"]


def test_patient_fold_and_path(tmp_path: Path) -> None:
    write_ptbxl(tmp_path, [(7, "{'NORM': 1.0}", name_of(7))])
    [candidate] = ptbxl.select(Archive(tmp_path), 100).candidates
    assert (candidate.patient, candidate.fold, candidate.header) == ("7", "1", "records100/00000/00007_lr.hea")


@pytest.mark.parametrize(("rate", "stored"), [(100, 100), (500, 500), (250, 500)])
def test_one_rule_says_which_files_are_needed_and_read(tmp_path: Path, rate: int, stored: int) -> None:
    files = ptbxl.DATASET.files(rate)
    wanted = {name.split("/")[0] for name in PTBXL if files.pattern.fullmatch(name)}
    assert wanted == {"ptbxl_database.csv", "scp_statements.csv", f"records{stored}"}
    assert 21_799 * files.estimate(f"records{stored}/00000/x.dat") == pytest.approx(5.2e6 * stored, rel=0.05)
    write_ptbxl(tmp_path, [(7, "{'NORM': 1.0}", "lr/7", "hr/7")])
    [candidate] = ptbxl.select(Archive(tmp_path), rate).candidates
    assert candidate.header == {100: "lr/7.hea", 500: "hr/7.hea"}[stored]


@pytest.mark.parametrize(
    "codes",
    [
        "__import__('os').system('touch {marker}')",
        "{{'NORM': __import__('pathlib').Path('{marker}').touch()}}",
        "{{**{{'NORM': 1}}}}",
        "['NORM']",
        "NORM",
        "{{'NORM': 100.0",
        "(" * 5000,
        "{{" + "'NORM': 1, " * 2000 + "}}",
    ],
)
def test_codes_are_never_run_and_nonsense_is_dropped(tmp_path: Path, codes: str) -> None:
    marker = tmp_path / "was_run"
    kept, dropped = verdicts(tmp_path / "archive", (1, codes.format(marker=marker), name_of(1)))
    assert not marker.exists()
    assert (kept, dropped) == ({}, {"1": "no label"})


@pytest.mark.parametrize(
    "name",
    ["../../outside", "/etc/passwd", "records100/../../x", "..", "", "a//b", "records100/a b", "a\\b", "~/x", "a\0b"],
)
def test_a_path_that_leaves_the_archive_is_refused(tmp_path: Path, name: str) -> None:
    kept, dropped = verdicts(tmp_path, (1, "{'NORM': 1.0}", name))
    assert (kept, dropped) == ({}, {"1": "unsafe name"})
    assert not is_safe(name)


@pytest.mark.parametrize("number", ["x1", "²", "9" * 5000])
def test_an_ecg_id_that_is_no_number_is_reported(tmp_path: Path, number: str) -> None:
    kept, dropped = verdicts(tmp_path, (number, "{'NORM': 1.0}", name_of(1)), (2, "{'NORM': 1.0}", name_of(2)))
    assert (kept, dropped) == ({"2": "NORM"}, {number: "unreadable"})


def test_published_counts_pass_and_others_warn() -> None:
    assert ptbxl.check_counts(21_799, {"NORM": 9069, "MI": 2532, "STTC": 2400, "CD": 1708, "HYP": 535}) == []
    [changed] = ptbxl.check_counts(21_799, {"NORM": 9070, "MI": 2531, "STTC": 2400, "CD": 1708, "HYP": 535})
    assert "'NORM': 9070" in changed
    [other] = ptbxl.check_counts(21_837, {"NORM": 9083})
    assert "21,837 rows, v1.0.3 has 21,799" in other


def test_a_missing_table_or_column_is_named(tmp_path: Path) -> None:
    write_ptbxl(tmp_path, [(1, "{'NORM': 1.0}", name_of(1))])
    write_csv(tmp_path / "ptbxl_database.csv", ["ecg_id", "patient_id", "filename_lr"], [])
    with pytest.raises(UserError, match=r"ptbxl_database\.csv has no column 'scp_codes'"):
        ptbxl.select(Archive(tmp_path), 100)
    (tmp_path / "ptbxl_database.csv").unlink()
    with pytest.raises(UserError, match=r"ptbxl_database\.csv is missing: run the download stage"):
        ptbxl.select(Archive(tmp_path), 100)


def test_a_binary_table_is_one_sentence(tmp_path: Path) -> None:
    write_ptbxl(tmp_path, [])
    (tmp_path / "ptbxl_database.csv").write_bytes(b"\xff\xfe\x00\x01" * 100)
    with pytest.raises(UserError, match="is not a readable CSV file"):
        ptbxl.select(Archive(tmp_path), 100)


@pytest.mark.real
def test_counts_of_the_real_table(material: Path) -> None:
    selected = ptbxl.select(Archive(material / "data" / "ptbxl"), 100)
    counts = Counter(candidate.label for candidate in selected.candidates)
    assert counts == {"NORM": 9069, "MI": 2532, "STTC": 2400, "CD": 1708, "HYP": 535}
    assert Counter(drop.reason for drop in selected.dropped) == {"no label": 411, "multi-label": 5144}
    assert selected.warnings == []


@pytest.mark.parametrize(
    "text",
    ["{'NORM': 100.0, 'SR': 0.0}", "{'A': 1.0, 'A': 2.0}", "{'A': 1.0'B': 2.0}", "{'A': 1}", '{"A": 1.0}', "{}",
     "{'A': 1.0,}", "{'A': 1.0}}", "{'A': ١.0}", "{'A\\'': 1.0}"],
)  # fmt: skip
def test_the_short_way_to_the_codes_is_that_of_python(text: str) -> None:
    try:
        wanted = tuple(ast.literal_eval(text))
    except SyntaxError:
        wanted = None
    assert ptbxl.parse_codes(text) == wanted


def sines(rate: float, later: float = 0.0) -> NDArray[np.float64]:
    """12 s, each lead with its own frequency and offset."""
    time = (np.arange(round(rate * 12)) + later) / rate
    return np.stack([np.sin(2 * np.pi * (0.973 + 0.237 * lead) * time) + lead / 10 for lead in range(12)], axis=1)


@pytest.mark.parametrize("rate", [50, 128, 257, 360, 359.9999, 500.1, 977, 1000, 2048])
def test_any_rate_goes_to_100_hz_an_eighth_of_a_sample_later(rate: float) -> None:
    inner = slice(100, 1100)
    made = ptbxl.resample(sines(rate), rate, 100)
    np.testing.assert_allclose(made[inner], sines(100, later=0.125)[inner], atol=0.02)


def test_what_100_hz_cannot_hold_is_filtered_out_and_the_rest_kept() -> None:
    for hertz, smallest, largest in ((5, 0.99, 1.01), (40, 0.95, 1.02), (50, 0, 0.05), (60, 0, 0.02), (95, 0, 0.02)):
        wave = np.sin(2 * np.pi * hertz * np.arange(5000) / 500)[:, None] * np.ones((1, 12))
        left = np.abs(ptbxl.resample(wave, 500, 100)[50:-50]).max()
        assert smallest <= left <= largest, hertz


def test_other_rates_are_reached_as_usual() -> None:
    np.testing.assert_array_equal(ptbxl.resample(sines(500), 500, 250), resample(sines(500), 500, 250))


@pytest.mark.real
@pytest.mark.slow
def test_500_hz_records_become_the_published_100_hz_ones(ptbxl_mirror: Path) -> None:
    """50 that the mirror holds at both rates, but for their ends within a microvolt; by FFT it would be 17."""
    off = []
    for fast in sorted((ptbxl_mirror / "records500").rglob("*.hea"))[:50]:
        slow = ptbxl_mirror / "records100" / fast.parent.name / fast.name.replace("_hr", "_lr")
        rows = [np.zeros((12, 1000), dtype=np.int16) for _ in range(2)]
        for header, row in zip((fast, slow), rows, strict=True):
            prepare(read_record(header), ptbxl.DATASET.preparation(100, "none"), row)
        off.append(np.sqrt(np.mean((rows[0] - rows[1].astype(float))[:, 50:-50] ** 2)))
    assert len(off) == 50 and np.median(off) < 1
