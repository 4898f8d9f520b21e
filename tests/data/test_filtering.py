from __future__ import annotations

import csv
import errno
import hashlib
import re
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from safeecgmatch.data import filtering, ingest
from safeecgmatch.data.filtering import filter_dataset
from safeecgmatch.data.ingest import close_up, npy_header
from safeecgmatch.data.preparation import band_pass, resample
from safeecgmatch.data.selection import REASONS
from safeecgmatch.engine.signal_store import SignalStore
from safeecgmatch.errors import UserError
from safeecgmatch.files import read_json
from tests.data.tiny import LEADS, waves, write_cinc, write_ptbxl, write_record

AF, BLOCK, SINUS = "164889003", "713427006", "426783006"


def fingerprint(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def reasons(report: dict[str, Any]) -> dict[str, str]:
    return {drop["record"]: drop["reason"] for drop in report["dropped"]}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """200 PTB-XL records, four blocks, of which every seventh is damaged and every ninth has two labels."""
    folder = tmp_path / "ptbxl"
    codes = ["{'NORM': 100.0}", "{'IMI': 100.0}", "{'NDT': 50.0}"]
    rows = [
        (n, "{'NORM': 1.0, 'LVH': 1.0}" if n % 9 == 0 else codes[n % 3], f"records100/00000/{n:05d}_lr")
        for n in range(1, 201)
    ]
    write_ptbxl(folder, rows)
    for n in range(7, 201, 7):
        (folder / f"records100/00000/{n:05d}_lr.dat").unlink()
    return folder


@pytest.fixture
def bad_archive(tmp_path: Path) -> Path:
    """A Challenge archive with one record for every reason to be dropped, and five good ones."""
    folder = tmp_path / "cinc21"
    for number in range(5):
        write_cinc(folder, f"E{number}", AF if number % 2 else SINUS, number)
    write_cinc(folder, "X1", f"{AF},{BLOCK}")
    write_cinc(folder, "X2", "")
    write_cinc(folder, "X3", AF).with_suffix(".mat").write_bytes(b"short")
    write_cinc(folder, "X4", AF, values=waves(1, 5000, 11))
    write_cinc(folder, "X5", AF, values=waves(1, 499))
    silent = waves(1, 5000)
    silent[:, 2] = 0
    write_cinc(folder, "X6", AF, values=silent)
    missing = waves(1, 5000)
    missing[17, 5] = -32768
    write_cinc(folder, "X7", AF, values=missing)
    write_cinc(folder, "X8", AF, gain="0.1/mV")
    flat = waves(1, 5000)
    flat[:, 2] = 3
    write_cinc(folder, "X0", AF, values=flat)
    write_cinc(folder, "E1", AF, 99, source="z_copy")
    write_cinc(folder, "X 9", AF)
    write_cinc(folder, "Y1", AF, file="../../../secret.dat")
    return folder


def test_every_reason_is_named_and_the_good_records_are_kept(bad_archive: Path, tmp_path: Path) -> None:
    report = filter_dataset("cinc21", bad_archive, tmp_path / "out", 500, "release")
    assert reasons(report) == {
        "X0": "flat lead",
        "X1": "multi-label",
        "X2": "no label",
        "X3": "unreadable",
        "X4": "wrong lead count",
        "X5": "too short",
        "X6": "all-zero lead",
        "X7": "NaN or invalid samples",
        "X8": "implausible amplitudes",
        "E1": "duplicate id",
        "X 9": "unsafe name",
        "Y1": "unreadable",
    }
    assert set(report["dropped_counts"]) == set(REASONS)
    details = {drop["record"]: drop.get("detail", "") for drop in report["dropped"]}
    assert details["X3"] == "X3.mat holds 0 samples per lead, its header says 5000"
    assert "'../../../secret.dat', which is not a plain name in its own folder" in details["Y1"]
    assert details["E1"] == "training/z_copy/g1/E1.hea repeats a record that was read before"
    store = SignalStore.open(tmp_path / "out")
    assert store.records.tolist() == ["E0", "E1", "E2", "E3", "E4"]
    assert store.labels.tolist() == ["NORM", "RHY", "NORM", "RHY", "NORM"]
    for number in range(5):
        np.testing.assert_array_equal(store.signals[number], waves(number, 5000).T)


def test_of_two_with_one_id_the_second_is_kept_if_the_first_is_unusable(tmp_path: Path) -> None:
    write_cinc(tmp_path / "in", "E1", AF, 1, source="a").with_suffix(".mat").unlink()
    write_cinc(tmp_path / "in", "E1", AF, 2, source="b")
    report = filter_dataset("cinc21", tmp_path / "in", tmp_path / "out", 500, "release")
    assert reasons(report) == {"E1": "unreadable"}
    np.testing.assert_array_equal(SignalStore.open(tmp_path / "out").signals[0], waves(2, 5000).T)


def test_rows_table_and_signals_belong_together(archive: Path, tmp_path: Path) -> None:
    report = filter_dataset("ptbxl", archive, tmp_path / "out", 100, "none")
    store = SignalStore.open(tmp_path / "out")
    kept = [n for n in range(1, 201) if n % 9 and n % 7]
    assert store.records.tolist() == [str(n) for n in kept]
    np.testing.assert_array_equal(store.signals, [waves(n - 1, 1000).T for n in kept])
    assert report["kept"] == len(kept)
    assert report["records"] == 200
    assert report["dropped_counts"] == {"multi-label": 22, "unreadable": 25}
    assert (store.standardise, store.sampling_rate, store.samples) == (False, 100, 1000)
    assert "200 rows, v1.0.3 has 21,799" in report["warnings"][0]
    assert read_json(tmp_path / "out/store.json")["signals_sha256"] == fingerprint(tmp_path / "out")["signals.npy"]


def test_bytes_depend_neither_on_workers_nor_on_the_run(archive: Path, tmp_path: Path) -> None:
    for name, workers in (("one", 1), ("two", 2), ("again", 2)):
        filter_dataset("ptbxl", archive, tmp_path / name, 100, "none", workers=workers)
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "two") == fingerprint(tmp_path / "again")


def test_an_older_store_is_replaced_whole(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "stale").write_text("x")
    filter_dataset("ptbxl", archive, tmp_path / "out", 100, "none")
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert names == {"signals.npy", "records.csv", "store.json", "report.json", "page.png"}


def test_ecgmatch_is_filtered_and_marked_for_standardisation(bad_archive: Path, tmp_path: Path) -> None:
    report = filter_dataset("cinc21", bad_archive, tmp_path / "out", 100, "ecgmatch")
    store = SignalStore.open(tmp_path / "out")
    assert (report["kept"], store.samples, store.standardise, store.preprocessing) == (5, 1000, True, "ecgmatch")
    wanted = resample(band_pass(waves(0, 5000).astype(float), 500), 500, 100)
    np.testing.assert_array_equal(store.signals[0], np.rint(wanted).T)


def test_ptbxl_at_another_rate_is_resampled_from_the_500_hz_files(tmp_path: Path) -> None:
    write_ptbxl(tmp_path / "in", [(1, "{'NORM': 1.0}", "records500/00000/00001_hr")])
    write_record(tmp_path / "in/records500/00000/00001_hr.hea", waves(1, 5000), "500")
    filter_dataset("ptbxl", tmp_path / "in", tmp_path / "out", 250, "none")
    store = SignalStore.open(tmp_path / "out")
    assert store.signals.shape == (1, 12, 2500)
    assert read_json(tmp_path / "out/store.json")["signals_sha256"] == fingerprint(tmp_path / "out")["signals.npy"]


def test_clipped_and_padded_records_are_reported(tmp_path: Path) -> None:
    values = waves(1, 4000)
    values[:1000] = 9000
    write_cinc(tmp_path / "in", "E1", AF, values=values, gain="200/mV")
    write_cinc(tmp_path / "in", "E2", AF)
    report = filter_dataset("cinc21", tmp_path / "in", tmp_path / "out", 500, "release")
    assert (report["clipped"], report["zero_padded"]) == (["E1"], 1)


HEADERS = {  # a bad header, and what the report says about it
    "rate 0": ("{name} 12 0 5000", "0 Hz"),
    "a negative rate": ("{name} 12 -100 5000", "states no sampling rate"),
    "no rate": ("{name} 12", "states no sampling rate"),
    "a rate of 400 digits": ("{name} 12 " + "9" * 400 + " 5000", "Hz"),
    "5,000 digits of samples": ("{name} 12 100 " + "9" * 5000, "wfdb"),
    "5,000 digits of leads": ("{name} " + "9" * 5000 + " 100 5000", "wfdb"),
}


@pytest.mark.parametrize("preprocessing", ["release", "ecgmatch"])
def test_a_bad_header_is_a_dropped_record_with_a_reason(tmp_path: Path, preprocessing: str) -> None:
    for number, (line, _) in enumerate(HEADERS.values()):
        write_cinc(tmp_path / "in", f"X{number}", AF, line=line.format(name=f"X{number}"))
    header = write_cinc(tmp_path / "in", "Y1", AF)
    header.write_text(header.read_text().replace("16+24", "16+" + "9" * 5000))
    write_cinc(tmp_path / "in", "Y2", AF, gain="1e-300/mV")
    write_cinc(tmp_path / "in", "Y3", AF, gain="1e-320/mV")
    write_cinc(tmp_path / "in", "Y4", AF, gain="1000(" + "9" * 400 + ")/mV")
    write_cinc(tmp_path / "in", "Z1", AF, comments=[f"#Dx: {AF}", *["#" + "x" * 99] * 2_500])
    write_cinc(tmp_path / "in", "Z2", AF, line="Z2 9000 500 5000", comments=["Z2.mat 16 1000/mV 16 0 0 0 0 I"] * 9_000)
    write_cinc(tmp_path / "in", "E1", AF)
    report = filter_dataset("cinc21", tmp_path / "in", tmp_path / "out", 100, preprocessing)
    assert SignalStore.open(tmp_path / "out").records.tolist() == ["E1"]
    assert report["clipped"] == []
    details = {drop["record"]: f"{drop['reason']}: {drop.get('detail', '')}" for drop in report["dropped"]}
    for number, (_, expected) in enumerate(HEADERS.values()):
        assert details[f"X{number}"].startswith("unreadable: ") and expected in details[f"X{number}"]
        assert len(details[f"X{number}"]) < 300
    assert details["Y1"].startswith("unreadable: ")
    implausible = f"implausible amplitudes: more than half of lead {', '.join(LEADS)} is beyond 32 mV"
    assert {details[name] for name in ("Y2", "Y3", "Y4")} == {implausible}
    assert "no header is that long" in details["Z1"] and "no header is that long" in details["Z2"]


@pytest.mark.parametrize("kept", [[0, 1, 2, 3], [1, 3], [0, 3], [2], [1, 2, 3]])
def test_closing_up_moves_rows_in_place(tmp_path: Path, kept: list[int]) -> None:
    rows = np.random.default_rng(1).integers(-9, 9, (4, 12, 5)).astype(np.int16)
    file = tmp_path / "a.npy"
    file.write_bytes(npy_header(4, 5) + rows.tobytes())
    close_up(file, kept, 5)
    np.testing.assert_array_equal(np.load(file), rows[kept])
    assert file.stat().st_size == len(npy_header(len(kept), 5)) + len(kept) * 12 * 5 * 2


def test_an_npy_header_has_one_length() -> None:
    assert len({len(npy_header(rows, 5000)) for rows in (0, 9, 10, 88_253, 10**9)}) == 1


def nothing_left(folder: Path) -> bool:
    return [entry.name for entry in folder.iterdir() if entry.name not in ("ptbxl", "cinc21")] == []


def test_no_usable_record_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    write_ptbxl(tmp_path / "ptbxl", [(1, "{'NORM': 1.0}", "records100/00000/00001_lr")])
    (tmp_path / "ptbxl/records100/00000/00001_lr.dat").unlink()
    with pytest.raises(UserError, match=r"has no usable record: \{'unreadable': 1\}"):
        filter_dataset("ptbxl", tmp_path / "ptbxl", tmp_path / "out", 100, "none")
    assert nothing_left(tmp_path)


def test_an_unknown_preprocessing_is_named(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no preprocessing 'fancy': use one of none, release, ecgmatch"):
        filter_dataset("ptbxl", archive, tmp_path / "out", 100, "fancy")


def test_a_full_disk_is_said_before_and_while_writing(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(reading: ingest.Ingestion, block: ingest.Block) -> list[ingest.Fit]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ingest, "ingest", no_space)
    with pytest.raises(UserError, match="is full: free some space"):
        filter_dataset("ptbxl", archive, tmp_path / "out", 100, "none")
    monkeypatch.setattr(ingest.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(UserError, match=re.escape("but only 0.00 GB are free.")):
        filter_dataset("ptbxl", archive, tmp_path / "out", 100, "none")
    assert nothing_left(tmp_path)


def test_a_killed_worker_is_one_sentence_and_leaves_nothing(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = MagicMock()
    pool.return_value.__enter__.return_value.map.side_effect = BrokenProcessPool
    pool.return_value.__exit__.return_value = False
    monkeypatch.setattr(ingest, "ProcessPoolExecutor", pool)
    with pytest.raises(UserError, match="A reading process was killed"):
        filter_dataset("ptbxl", archive, tmp_path / "out", 100, "none", workers=2)
    assert nothing_left(tmp_path)


def test_an_interrupted_run_leaves_the_old_store(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filter_dataset("ptbxl", archive, tmp_path / "out", 100, "none")
    before = fingerprint(tmp_path / "out")

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(filtering, "draw_page", interrupt)
    with pytest.raises(KeyboardInterrupt):
        filter_dataset("ptbxl", archive, tmp_path / "out", 100, "none")
    assert fingerprint(tmp_path / "out") == before


@pytest.mark.real
def test_the_mini_corpus(material: Path, cinc21_mirror: Path, tmp_path: Path) -> None:
    report = filter_dataset("cinc21", cinc21_mirror, tmp_path / "out", 500, "release")
    bad = {record: reason for record, reason in reasons(report).items() if "label" not in reason}
    assert bad == {
        "CS09729": "NaN or invalid samples",
        "CS10622": "all-zero lead",
        "CS01875": "NaN or invalid samples",
    }
    details = {drop["record"]: drop.get("detail", "") for drop in report["dropped"]}
    assert details["CS09729"].endswith("lead V2, V4, V6")
    assert details["CS01875"] == "7 missing samples, the first at sample 1925, lead aVF, V1, V2, V3, V4, V5, V6"
    assert report["single_label"] == {"NORM": 220, "RHY": 240, "CD": 200, "ST": 213, "OTHER": 217}
    assert report["class_counts"] == {"NORM": 219, "RHY": 239, "CD": 199, "ST": 213, "OTHER": 217}
    assert report["records"] == 1308
    with (material / "data" / "cinc21" / "shards500" / "index.csv").open() as stream:
        corpus = {row["record"] for row in csv.DictReader(stream)}
    assert (
        sum(record in corpus for record in SignalStore.open(tmp_path / "out").records.tolist()) == 1208 - 116 - 48 - 3
    )


@pytest.mark.real
@pytest.mark.slow
def test_ptbxl_in_full(ptbxl_mirror: Path, tmp_path: Path) -> None:
    report = filter_dataset("ptbxl", ptbxl_mirror, tmp_path / "out", 100, "none")
    assert (report["kept"], report["records"], report["warnings"]) == (16_244, 21_799, [])
    assert report["class_counts"] == {"NORM": 9069, "MI": 2532, "STTC": 2400, "CD": 1708, "HYP": 535}
    assert report["dropped_counts"] == {"no label": 411, "multi-label": 5144}
    assert SignalStore.open(tmp_path / "out").signals.shape == (16_244, 12, 1000)
