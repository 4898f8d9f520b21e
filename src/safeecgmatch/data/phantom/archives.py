"""Phantom archives on disk, in the layout that PhysioNet gives PTB-XL and the 2021 Challenge.

Nothing here depends on clock, locale or host: the same arguments give the same bytes.
"""

from __future__ import annotations

import csv
import hashlib
import io
import struct
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from safeecgmatch.data.classes import SINUS_RHYTHM
from safeecgmatch.data.phantom.heart import INVALID
from safeecgmatch.data.phantom.patients import Study, Subject, apportion
from safeecgmatch.errors import UserError
from safeecgmatch.files import atomic_path
from safeecgmatch.leads import LEADS
from safeecgmatch.progress import Progress

Signal = NDArray[np.int16]

MARK = "PHANTOM.txt"
DAMAGES = ("truncated", "missing", "invalid_samples", "flat_lead", "eleven_leads", "garbage_header")

DATABASE_COLUMNS = (
    "ecg_id,patient_id,age,sex,site,device,recording_date,strat_fold,validated_by_human,scp_codes,filename_lr,filename_hr"
).split(",")
STATEMENT_COLUMNS = (
    ",description,diagnostic,form,rhythm,diagnostic_class,diagnostic_subclass,Statement Category,"
    "SCP-ECG Statement Description,AHA code,aECG REFID,CDISC Code,DICOM Code"
).split(",")
# code, description, kind, superclass, subclass
STATEMENTS = (
    ("NORM", "normal ECG", "diagnostic", "NORM", "NORM"),
    ("ASMI", "anteroseptal myocardial infarction", "diagnostic", "MI", "AMI"),
    ("AMI", "anterior myocardial infarction", "diagnostic", "MI", "AMI"),
    ("IMI", "inferior myocardial infarction", "diagnostic", "MI", "IMI"),
    ("LMI", "lateral myocardial infarction", "diagnostic", "MI", "LMI"),
    ("CRBBB", "complete right bundle branch block", "diagnostic", "CD", "CRBBB"),
    ("IRBBB", "incomplete right bundle branch block", "diagnostic", "CD", "IRBBB"),
    ("CLBBB", "complete left bundle branch block", "diagnostic", "CD", "CLBBB"),
    ("LAFB", "left anterior fascicular block", "diagnostic", "CD", "LAFB/LPFB"),
    ("IVCD", "intraventricular conduction disturbance", "diagnostic", "CD", "IVCD"),
    ("1AVB", "first degree AV block", "diagnostic", "CD", "_AVB"),
    ("ISC_", "ischaemic ST-T changes", "diagnostic", "STTC", "ISC_"),
    ("ISCAL", "ischaemic in anterolateral leads", "diagnostic", "STTC", "ISCA"),
    ("NDT", "non-diagnostic T abnormalities", "diagnostic", "STTC", "STTC"),
    ("LNGQT", "long QT interval", "diagnostic", "STTC", "STTC"),
    ("LVH", "left ventricular hypertrophy", "diagnostic", "HYP", "LVH"),
    ("RVH", "right ventricular hypertrophy", "diagnostic", "HYP", "RVH"),
    ("ABQRS", "abnormal QRS", "form", "", ""),
    ("LOWT", "low T waves", "form", "", ""),
    ("SR", "sinus rhythm", "rhythm", "", ""),
)

# Folder, prefix of its records, share, sampling rate, shortest and longest record in seconds, space after '#'.
SOURCES = (
    ("ptb-xl", "HR", 0.35, 500, 10, 10, True),
    ("chapman_shaoxing", "JS", 0.25, 500, 10, 10, False),
    ("ningbo", "JS", 0.20, 500, 10, 10, False),
    ("georgia", "E", 0.14, 500, 10, 10, False),
    ("cpsc_2018", "A", 0.03, 500, 6, 13, False),
    ("ptb", "S", 0.015, 1000, 12, 20, True),
    ("st_petersburg_incart", "I", 0.015, 257, 15, 25, True),
)
NINGBO_FIRST = 10646  # the Challenge numbers Ningbo's JS records after Chapman-Shaoxing's
UNGROUPED_CODE = "164865005"  # myocardial infarction: in none of the Challenge groups used here


def write_archive(dataset: str, folder: Path, records: int, seed: int, sampling_rate: int) -> None:
    """Make `folder` a phantom archive of `dataset`; an earlier phantom there is replaced, anything else is refused.

    PTB-XL is written at 100 Hz when `sampling_rate` is 100, else at 500 Hz; Challenge records have rates of their own.
    """
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARK).is_file():
        raise UserError(
            f"{folder} holds files that are not a generated archive, so the phantom is not written over them; "
            "move them away or choose another data folder."
        )
    writers = {"ptbxl": _write_ptbxl, "cinc21": _write_cinc21}
    with atomic_path(folder) as partial:
        partial.mkdir()
        tree = _Tree(partial)
        tree.put(MARK, f"Generated signals, no patients: {dataset}, {records} records, seed {seed}.\n")
        study = Study(dataset, seed)
        with Progress(records, f"phantom {dataset}", "records") as progress:
            writers[dataset](tree, study, study.roster(records), sampling_rate, progress)
        tree.finish()


def damaged(subjects: Sequence[Subject]) -> dict[int, str]:
    """Which records are damaged and how: spread over the archive, only records of a single class."""
    whole = [subject.number for subject in subjects if len(subject.classes) == 1]
    step = max(1, len(whole) // len(DAMAGES))
    return dict(zip(whole[step // 2 :: step], DAMAGES, strict=False))


class _Tree:
    """A folder that remembers the SHA-256 of everything put into it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sums: dict[str, str] = {}

    def put(self, name: str, content: str | bytes) -> None:
        data = content.encode() if isinstance(content, str) else content
        path = self.root / name
        try:
            path.write_bytes(data)
        except FileNotFoundError:
            path.parent.mkdir(parents=True)
            path.write_bytes(data)
        self.sums[name] = hashlib.sha256(data).hexdigest()

    def put_lines(self, name: str, lines: Iterable[str]) -> None:
        self.put(name, "".join(f"{line}\n" for line in lines))

    def put_table(self, name: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
        self.put(name, text.getvalue())

    def put_record(self, stem: str, header: list[str], suffix: str, data: bytes, damage: str | None) -> None:
        """Header and signal file; the damages that lie in the files rather than in the samples happen here."""
        if damage == "garbage_header":
            header = ["\x00\x17 this is not a header", *header[5:]]
        self.put_lines(f"{stem}.hea", header)
        if damage == "truncated":
            data = data[: len(data) * 2 // 5]
        if damage != "missing":
            self.put(f"{stem}{suffix}", data)

    def finish(self) -> None:
        lines = [f"{digest} {name}\n" for name, digest in sorted(self.sums.items())]
        (self.root / "SHA256SUMS.txt").write_bytes("".join(lines).encode())


def _damage_samples(signal: Signal, damage: str | None) -> Signal:
    if damage == "eleven_leads":
        return signal[:11]
    if damage in ("invalid_samples", "flat_lead"):
        signal = signal.copy()
        if damage == "flat_lead":
            signal[8] = 0
        else:
            signal[6:9, signal.shape[1] // 3 :] = INVALID
    return signal


def _first_and_sum(signal: Signal) -> list[tuple[int, int]]:
    """First value and 16-bit checksum (0..65535) of each lead."""
    sums = signal.sum(axis=1, dtype=np.int64) & 0xFFFF
    return list(zip(signal[:, 0].tolist(), sums.tolist(), strict=True))


# ---- PTB-XL


def _write_ptbxl(tree: _Tree, study: Study, subjects: list[Subject], sampling_rate: int, progress: Progress) -> None:
    rate, suffix = (100, "lr") if sampling_rate == 100 else (500, "hr")
    damages = damaged(subjects)
    tree.put_table("ptbxl_database.csv", DATABASE_COLUMNS, [_database_row(study, subject) for subject in subjects])
    tree.put_table("scp_statements.csv", STATEMENT_COLUMNS, [_statement_row(*statement) for statement in STATEMENTS])
    for subject in subjects:
        damage = damages.get(subject.number)
        signal = _damage_samples(study.signal(subject, rate), damage)
        stem = _ptbxl_stem(subject.number, rate, suffix)
        name = stem.rpartition("/")[2]
        header = [f"{name} {len(signal)} {rate} {signal.shape[1]}"]
        for lead, (first, checksum) in zip(LEADS, _first_and_sum(signal), strict=False):
            header.append(f"{name}.dat 16 1000.0(0)/mV 16 0 {first} {checksum} 0 {lead.upper()}")
        tree.put_record(stem, header, ".dat", signal.T.astype("<i2").tobytes(), damage)
        progress.advance(1)
    tree.put_lines("RECORDS", [_ptbxl_stem(subject.number, rate, suffix) for subject in subjects])


def _ptbxl_stem(number: int, rate: int, suffix: str) -> str:
    return f"records{rate}/{number // 1000 * 1000:05d}/{number:05d}_{suffix}"


def _database_row(study: Study, subject: Subject) -> list[object]:
    person = study.papers(subject.patient)
    age, sex, fold = _age(person), int(person.integers(2)), int(person.integers(1, 11))
    papers = study.papers(100_000 + subject.number)
    recorded = datetime(1989, 1, 1) + timedelta(seconds=int(papers.integers(10 * 365 * 86400)))
    codes = {diagnosis.code: float(papers.choice([50.0, 80.0, 100.0])) for diagnosis in subject.diagnoses}
    if subject.classes == ("NORM",):
        codes["NORM"] = float(papers.choice([80.0, 100.0]))
    if not subject.classes:
        codes[str(papers.choice(["ABQRS", "LOWT"]))] = 0.0
    codes["SR"] = 0.0
    return [
        subject.number,
        f"{subject.patient + 300}.0",
        "" if age is None else f"{age}.0",
        sex,
        f"{papers.integers(3)}.0",
        "PHANTOM",
        recorded.isoformat(sep=" "),
        fold,
        bool(papers.random() < 0.75),
        repr(codes),
        _ptbxl_stem(subject.number, 100, "lr"),
        _ptbxl_stem(subject.number, 500, "hr"),
    ]


def _age(rng: np.random.Generator) -> int | None:
    """As PTB-XL gives it: 300 stands for more than 89, a few are unknown."""
    age = int(np.clip(rng.normal(60.0, 17.0), 18, 95))
    if rng.random() < 0.01:
        return None
    return 300 if age > 89 else age


def _statement_row(code: str, description: str, kind: str, superclass: str, subclass: str) -> list[str]:
    flags = ["1.0" if kind == column else "" for column in ("diagnostic", "form", "rhythm")]
    return [code, description, *flags, superclass, subclass, "", description, "", "", "", ""]


# ---- CinC 2021


def _write_cinc21(tree: _Tree, study: Study, subjects: list[Subject], sampling_rate: int, progress: Progress) -> None:
    damages = damaged(subjects)
    counts = {source[0]: 0 for source in SOURCES}
    sources = apportion({source[0]: source[2] for source in SOURCES}, len(subjects))
    study.papers(0).shuffle(sources)
    folders: dict[str, list[str]] = {}
    for subject, source in zip(subjects, sources, strict=True):
        papers = study.papers(subject.number)
        _, prefix, _, rate, shortest, longest, spaced = next(entry for entry in SOURCES if entry[0] == source)
        damage = damages.get(subject.number)
        seconds = float(papers.integers(shortest, longest + 1))
        signal = _damage_samples(study.signal(subject, rate, seconds), damage)
        counts[source] += 1
        digits = 5 if len(prefix) == 2 or prefix == "E" else 4
        name = f"{prefix}{counts[source] + (NINGBO_FIRST if source == 'ningbo' else 0):0{digits}d}"
        folder = f"training/{source}/g{(counts[source] - 1) // 1000 + 1}"
        header = _challenge_header(name, rate, signal, spaced) + _challenge_remarks(subject, papers, spaced)
        tree.put_record(f"{folder}/{name}", header, ".mat", mat4(signal), damage)
        folders.setdefault(folder, []).append(name)
        progress.advance(1)
    for folder, names in folders.items():
        tree.put_lines(f"{folder}/RECORDS", names)
    tree.put_lines("RECORDS", [f"{folder}/" for folder in sorted(folders)])


def mat4(signal: Signal) -> bytes:
    """A MATLAB v4 file with one little-endian int16 matrix `val`; its header takes 24 bytes."""
    header = struct.pack("<5i4s", 30, *signal.shape, 0, 4, b"val\0")
    return header + signal.T.astype("<i2").tobytes()


def _challenge_header(name: str, rate: int, signal: Signal, spaced: bool) -> list[str]:
    storage = "16x1+24" if spaced else "16+24"
    # Every third Georgia header is of the old kind, with the file's name and a date, which wfdb refuses.
    old = name.startswith("E") and int(name[1:]) % 3 == 0
    size = f"{len(signal)} {rate} {signal.shape[1]}"
    lines = [f"{name}.mat {size} 05-May-2020 14:50:55" if old else f"{name} {size}"]
    for lead, (first, checksum) in zip(LEADS, _first_and_sum(signal), strict=False):
        signed = checksum - 65536 if checksum > 32767 else checksum
        lines.append(f"{name}.mat {storage} 1000/mV 16 0 {first} {signed} 0 {lead}")
    return lines


def _challenge_remarks(subject: Subject, papers: np.random.Generator, spaced: bool) -> list[str]:
    age = _age(papers)
    remarks = {
        "Age": "NaN" if age is None else str(min(age, 92)),
        "Sex": str(papers.choice(["Male", "Female"])),
        "Dx": ",".join(_challenge_codes(subject, papers)),
        "Rx": "Unknown",
        "Hx": "Unknown",
        "Sx": "Unknown",
    }
    return [f"{'# ' if spaced else '#'}{key}: {value}" for key, value in remarks.items()]


def _challenge_codes(subject: Subject, papers: np.random.Generator) -> list[str]:
    if subject.classes == ("NORM",):
        return [SINUS_RHYTHM]
    if not subject.classes:
        return [UNGROUPED_CODE] if papers.random() < 0.5 else []
    codes = [diagnosis.code for diagnosis in subject.diagnoses]
    # Sinus rhythm is often written beside a finding; it does not make the record normal.
    return [*codes, SINUS_RHYTHM] if "RHY" not in subject.classes and papers.random() < 0.4 else codes
