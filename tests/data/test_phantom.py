"""Phantom archives: layout, headers, checksums, damage, determinism."""

from __future__ import annotations

import ast
import hashlib
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.io
import wfdb

from safeecgmatch.data.datasets.cinc21 import GROUPS, SINUS_RHYTHM
from safeecgmatch.data.phantom.archives import DAMAGES, damaged, layout_of, write_archive
from safeecgmatch.data.phantom.patients import Cohort, Subject
from safeecgmatch.errors import UserError
from safeecgmatch.leads import LEADS

RECORDS, SEED = 90, 7


@pytest.fixture(scope="module")
def ptbxl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phantom") / "ptbxl"
    write_archive("ptbxl", folder, RECORDS, SEED, 100)
    return folder


@pytest.fixture(scope="module")
def cinc21(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phantom") / "cinc21"
    write_archive("cinc21", folder, RECORDS, SEED, 500)
    return folder


def roster(dataset: str, records: int = RECORDS) -> list[Subject]:
    return Cohort(layout_of(dataset).POPULATION, SEED).roster(records)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("dataset", ["ptbxl", "cinc21"])
def test_the_seed_decides_every_byte(dataset: str, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_archive(dataset, tmp_path / name, 20, seed, 100)
    first, again, other = (contents(tmp_path / name) for name in "abc")
    assert first == again
    assert first != other


@pytest.mark.parametrize("dataset", ["ptbxl", "cinc21"])
def test_sums_list_exactly_the_files_that_exist(dataset: str, request: pytest.FixtureRequest) -> None:
    files = contents(request.getfixturevalue(dataset))
    lines = files.pop("SHA256SUMS.txt").decode().splitlines()
    assert dict(reversed(line.split(" ", 1)) for line in lines) == {
        name: hashlib.sha256(data).hexdigest() for name, data in files.items()
    }


def test_an_earlier_phantom_is_replaced_and_anything_else_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "ptbxl"
    write_archive("ptbxl", target, 30, SEED, 100)
    write_archive("ptbxl", target, 10, SEED, 100)
    assert len(list(target.rglob("*.hea"))) == 10
    own = tmp_path / "own"
    own.mkdir()
    (own / "ptbxl_database.csv").write_text("precious")
    with pytest.raises(UserError, match="not a generated archive"):
        write_archive("ptbxl", own, 10, SEED, 100)
    with pytest.raises(UserError, match=r"no generator of mimic: set data\.mimic\.source to physionet or path"):
        write_archive("mimic", tmp_path / "other", 10, SEED, 100)
    assert contents(own) == {"ptbxl_database.csv": b"precious"}


# ---- PTB-XL


def test_ptbxl_records_read_back_with_wfdb(ptbxl: Path) -> None:
    subjects = roster("ptbxl")
    whole = [subject for subject in subjects if subject.number not in damaged(subjects)][:12]
    for subject in whole:
        record = wfdb.rdrecord(str(ptbxl / f"records100/00000/{subject.number:05d}_lr"), physical=False)
        assert (record.fs, record.sig_len, record.n_sig) == (100, 1000, 12)
        assert record.sig_name == [lead.upper() for lead in LEADS]
        assert record.units == ["mV"] * 12 and record.adc_gain == [1000.0] * 12
        np.testing.assert_array_equal(
            record.d_signal.T, Cohort(layout_of("ptbxl").POPULATION, SEED).signal(subject, 100)
        )
        assert record.init_value == record.d_signal[0].tolist()
        assert record.checksum == (record.d_signal.sum(axis=0, dtype=np.int64) & 0xFFFF).tolist()
    header = (ptbxl / f"records100/00000/{whole[0].number:05d}_lr.hea").read_text().splitlines()
    name = f"{whole[0].number:05d}_lr"
    assert header[0] == f"{name} 12 100 1000"
    assert header[4].split()[:5] == [f"{name}.dat", "16", "1000.0(0)/mV", "16", "0"]
    assert header[4].split()[-1] == "AVR"


@pytest.mark.parametrize(
    "rate, folder, suffix, samples", [(500, "records500", "hr", 5000), (250, "records500", "hr", 5000)]
)
def test_other_rates_are_served_from_500_hertz(
    rate: int, folder: str, suffix: str, samples: int, tmp_path: Path
) -> None:
    write_archive("ptbxl", tmp_path / "a", 8, SEED, rate)
    assert not (tmp_path / "a" / "records100").exists()
    assert wfdb.rdheader(str(tmp_path / "a" / folder / "00000" / f"00001_{suffix}")).sig_len == samples


def test_ptbxl_tables_have_the_released_form(ptbxl: Path) -> None:
    statements = pd.read_csv(ptbxl / "scp_statements.csv", index_col=0)
    assert {"diagnostic", "form", "rhythm", "diagnostic_class", "diagnostic_subclass"} <= set(statements.columns)
    diagnostic = statements[statements.diagnostic == 1.0].diagnostic_class
    database = pd.read_csv(ptbxl / "ptbxl_database.csv", index_col="ecg_id")
    assert database.index.tolist() == list(range(1, RECORDS + 1))
    assert database.filename_lr[1] == "records100/00000/00001_lr"
    assert database.filename_hr[90] == "records500/00000/00090_hr"
    assert database.strat_fold.between(1, 10).all()
    assert database.validated_by_human.dtype == bool
    for subject, text in zip(roster("ptbxl"), database.scp_codes, strict=True):
        codes = ast.literal_eval(text)
        assert set(codes) <= set(statements.index)
        assert {diagnostic[code] for code in codes if code in diagnostic.index} == set(subject.classes)


def test_patients_with_several_records_stay_in_one_fold(tmp_path: Path) -> None:
    write_archive("ptbxl", tmp_path / "a", 200, SEED, 100)
    database = pd.read_csv(tmp_path / "a" / "ptbxl_database.csv")
    patients = database.groupby("patient_id")
    assert 8 < (patients.size() > 1).sum() < 40
    assert (patients[["strat_fold", "sex"]].nunique() == 1).all(axis=None)
    assert database.strat_fold.nunique() == 10


# ---- CinC 2021


def test_challenge_records_read_back_with_wfdb_and_scipy(cinc21: Path) -> None:
    seen: dict[str, set[int]] = defaultdict(set)
    unreadable = 0
    for header in sorted(cinc21.rglob("*.hea")):
        try:
            record = wfdb.rdrecord(str(header.with_suffix("")), physical=False)
        except (ValueError, FileNotFoundError):
            unreadable += 1  # damaged, or an old Georgia header, which wfdb refuses
            continue
        if record.n_sig == 11:
            continue
        assert record.sig_name == list(LEADS)
        assert record.adc_gain == [1000.0] * 12
        matrix = scipy.io.loadmat(header.with_suffix(".mat"))["val"]
        assert matrix.dtype == np.int16
        np.testing.assert_array_equal(record.d_signal.T, matrix)
        assert record.init_value == matrix[:, 0].tolist()
        assert [value & 0xFFFF for value in record.checksum] == (matrix.sum(axis=1, dtype=np.int64) & 0xFFFF).tolist()
        seen[header.parts[-3]].add(record.fs)
    old = sum(".mat" in header.read_text(errors="replace").split()[0] for header in cinc21.rglob("E*.hea"))
    assert old > 0
    assert unreadable <= old + len(DAMAGES)
    assert {"ptb-xl", "chapman_shaoxing", "ningbo", "georgia"} <= set(seen)
    assert seen["ptb-xl"] == {500}


def test_some_challenge_records_need_resampling_and_padding(tmp_path: Path) -> None:
    write_archive("cinc21", tmp_path / "a", 150, SEED, 500)
    first_lines = [path.read_text().split("\n")[0].split() for path in (tmp_path / "a").rglob("*.hea")]
    rates = Counter(int(line[2]) for line in first_lines if line[2].isdigit())
    assert {257, 500, 1000} == set(rates) and rates[500] > 0.9 * sum(rates.values())
    seconds = {int(line[3]) / int(line[2]) for line in first_lines if line[2].isdigit()}
    assert min(seconds) < 10 < max(seconds)


def test_challenge_headers_carry_the_codes_of_their_group(cinc21: Path) -> None:
    spellings, labels = Counter(), Counter()
    for path in cinc21.rglob("*.hea"):
        [line] = [line for line in path.read_text(errors="replace").splitlines() if "Dx:" in line]
        spellings[line.partition("Dx:")[0]] += 1
        codes = {code.strip() for code in line.partition("Dx:")[2].split(",")}
        groups = tuple(sorted(name for name, members in GROUPS.items() if codes & members))
        labels[("NORM",) if codes == {SINUS_RHYTHM} else groups] += 1
    assert set(spellings) == {"# ", "#"}
    assert labels == Counter(tuple(sorted(subject.classes)) for subject in roster("cinc21"))


def test_challenge_lists_name_folders_and_records(cinc21: Path) -> None:
    folders = (cinc21 / "RECORDS").read_text().split()
    listed = {f"{folder}{name}" for folder in folders for name in (cinc21 / folder / "RECORDS").read_text().split()}
    assert listed == {str(path.relative_to(cinc21))[:-4] for path in cinc21.rglob("*.hea")}
    assert len(listed) == RECORDS


# ---- both


@pytest.mark.parametrize("dataset", ["ptbxl", "cinc21"])
def test_classes_keep_their_shares(dataset: str) -> None:
    subjects = roster(dataset, 1200)
    single = Counter(subject.classes[0] for subject in subjects if len(subject.classes) == 1)
    population = layout_of(dataset).POPULATION
    for name in population.diagnoses:
        assert abs(single[name] - 1200 * population.shares[name]) < 15
    assert sum(len(subject.classes) == 2 for subject in subjects) > 40
    assert sum(not subject.classes for subject in subjects) > 15
    assert {code for subject in subjects for code in (d.code for d in subject.diagnoses)} == {
        diagnosis.code for choices in population.diagnoses.values() for diagnosis in choices
    }


@pytest.mark.parametrize("records", [10, 90, 1200])
def test_each_damage_occurs_once_and_only_in_records_that_would_be_kept(records: int) -> None:
    subjects = roster("ptbxl", records)
    damages = damaged(subjects)
    assert sorted(damages.values()) == sorted(DAMAGES)
    assert all(len(subjects[number - 1].classes) == 1 for number in damages)


def test_damage_is_on_disk(ptbxl: Path) -> None:
    where = {damage: ptbxl / f"records100/00000/{number:05d}_lr" for number, damage in damaged(roster("ptbxl")).items()}
    assert where["truncated"].with_suffix(".dat").stat().st_size < 24000
    assert where["missing"].with_suffix(".hea").exists() and not where["missing"].with_suffix(".dat").exists()
    assert np.isnan(wfdb.rdrecord(str(where["invalid_samples"])).p_signal).any()
    flat = wfdb.rdrecord(str(where["flat_lead"])).p_signal
    assert (flat == 0).all(axis=0).sum() == 1
    assert wfdb.rdrecord(str(where["eleven_leads"])).n_sig == 11
    with pytest.raises(wfdb.io.header.HeaderSyntaxError):
        wfdb.rdheader(str(where["garbage_header"]))
