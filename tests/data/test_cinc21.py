from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from safeecgmatch.data.datasets import cinc21
from safeecgmatch.data.datasets.cinc21 import GROUPS
from safeecgmatch.data.readers import Archive
from safeecgmatch.data.selection import Verdicts
from safeecgmatch.errors import UserError
from tests.data.tiny import write_cinc

AF, BLOCK, LONG_QT, LOW_VOLTAGE, SINUS, INFARCT = (
    "164889003", "713427006", "111975006", "251146004", "426783006", "164865005",
)  # fmt: skip


def select(folder: Path) -> Verdicts:
    files = {file.relative_to(folder).as_posix(): "" for file in folder.rglob("*.hea")}
    return cinc21.select(Archive(folder, files), 500)


@pytest.mark.parametrize(
    ("codes", "groups"),
    [
        ([SINUS], ["NORM"]),
        ([SINUS, SINUS], []),
        ([SINUS, AF], ["RHY"]),
        ([SINUS, INFARCT], []),
        ([AF, AF], ["RHY"]),
        ([BLOCK, INFARCT], ["CD"]),
        ([LONG_QT], ["ST"]),
        ([LOW_VOLTAGE], ["OTHER"]),
        ([AF, LOW_VOLTAGE], ["RHY", "OTHER"]),
        ([], []),
    ],
)
def test_groups(codes: list[str], groups: list[str]) -> None:
    assert cinc21.groups_of(codes) == groups


def test_the_groups_are_disjoint_and_complete() -> None:
    assert {name: len(codes) for name, codes in GROUPS.items()} == {"RHY": 7, "CD": 17, "ST": 10, "OTHER": 11}
    assert len(frozenset().union(*GROUPS.values())) == 45


@pytest.mark.parametrize("line", ["#Dx: 1,2", "# Dx: 1, 2", "#Dx:1,2", "# Dx: 1,2 ", "#Dx: 1,,2,"])
def test_both_spellings_of_the_tag(line: str) -> None:
    assert cinc21.diagnosis_codes(f"a 12 500 10\n#Age: 3\n{line}\n#Dx: 9\n") == ["1", "2"]


@pytest.mark.parametrize("line", ["", "#Dx: ", "# Dx:", "Dx: 1", "#dx: 1", "#Rx: 1"])
def test_no_codes(line: str) -> None:
    assert cinc21.diagnosis_codes(f"a 12 500 10\n{line}\n") == []


def test_only_the_training_records_are_needed() -> None:
    names = ["training/ptb/g1/S1.mat", "training/ptb/g1/S1.hea", "training/ptb/g1/RECORDS", "LICENSE.txt", "x/a.mat"]
    assert [name for name in names if cinc21.DATASET.files(500).pattern.fullmatch(name)] == names[:2]


def test_sources() -> None:
    assert cinc21.source_of("training/georgia/g1/E1.hea") == "georgia"
    assert cinc21.source_of("ptb-xl/HR1.hea") == "ptb-xl"
    assert cinc21.source_of("E1.hea") == ""


def test_rows_are_in_the_order_of_names_and_the_first_by_path_comes_first(tmp_path: Path) -> None:
    for source, record in (("b", "E1"), ("a", "E2"), ("a", "E10"), ("c", "E1")):
        write_cinc(tmp_path, record, AF, source=source)
    found = [(c.record, c.source) for c in select(tmp_path).candidates]
    assert found == [("E1", "b"), ("E1", "c"), ("E10", "a"), ("E2", "a")]


def test_reasons(tmp_path: Path) -> None:
    write_cinc(tmp_path, "E1", "")
    write_cinc(tmp_path, "E2", INFARCT)
    write_cinc(tmp_path, "E3", f"{AF},{BLOCK}")
    write_cinc(tmp_path, "E 4", AF)
    write_cinc(tmp_path, "E5", AF)
    selected = select(tmp_path)
    assert [c.record for c in selected.candidates] == ["E5"]
    assert {(d.record, d.reason, d.detail) for d in selected.dropped} == {
        ("E1", "no label", "its header has no Dx code"),
        ("E2", "no label", ""),
        ("E3", "multi-label", ""),
        ("E 4", "unsafe name", "'training/georgia/g1/E 4.hea' is not a plain path inside the archive"),
    }


def test_the_manifest_decides_which_files_are_judged(tmp_path: Path) -> None:
    write_cinc(tmp_path, "E1", AF)
    write_cinc(tmp_path, "E2", AF)
    files = ["training/georgia/g1/E2.mat", "training/georgia/g1/E2.hea", "training/georgia/g1/E9.hea", "../E1.hea"]
    selected = cinc21.select(Archive(tmp_path, dict.fromkeys(files, "")), 500)
    assert [c.record for c in selected.candidates] == ["E2"]
    assert {d.record: d.reason for d in selected.dropped} == {"E9": "unreadable", "E1": "unsafe name"}


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no \.hea file: run the download stage"):
        select(tmp_path)


@pytest.mark.real
def test_group_counts_of_the_mini_corpus(material: Path, cinc21_mirror: Path) -> None:
    with (material / "data" / "cinc21" / "shards500" / "index.csv").open() as stream:
        ours = {row["record"] for row in csv.DictReader(stream)}
    selected = select(cinc21_mirror)
    counts: dict[str, Counter[str]] = {"HR": Counter(), "CS": Counter()}
    for judged in [*selected.candidates, *selected.dropped]:
        if judged.record in ours:
            counts[judged.record[:2]][getattr(judged, "label", None) or getattr(judged, "reason", "")] += 1
    several, none = "multi-label", "no label"
    assert counts["HR"] == {"NORM": 90, "RHY": 100, "CD": 115, "ST": 100, "OTHER": 105, several: 60, none: 30}
    assert counts["CS"] == {"NORM": 116, "RHY": 126, "CD": 82, "ST": 105, "OTHER": 105, several: 56, none: 18}


@pytest.mark.real
def test_group_counts_of_the_original_samples(material: Path) -> None:
    selected = select(material / "data" / "cinc21" / "samples")
    assert Counter(c.label for c in selected.candidates) == {"NORM": 14, "RHY": 14, "CD": 3, "ST": 8, "OTHER": 7}
    assert Counter(d.reason for d in selected.dropped) == {"multi-label": 37, "no label": 17}
    assert sum(d.detail == "its header has no Dx code" for d in selected.dropped) == 13
