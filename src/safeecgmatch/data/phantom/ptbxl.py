"""The phantom of PTB-XL: its tables, its classes, and its records at 100 or 500 Hz."""

from __future__ import annotations

from datetime import datetime, timedelta

from safeecgmatch.data.datasets.ptbxl import DATABASE, FILENAMES, STATEMENTS, stored_rate
from safeecgmatch.data.phantom import effects
from safeecgmatch.data.phantom.archives import Tree, damage_samples, damaged, draw_age, first_and_sum
from safeecgmatch.data.phantom.diseases import Diagnosis
from safeecgmatch.data.phantom.patients import Cohort, Population, Subject
from safeecgmatch.leads import LEADS
from safeecgmatch.progress import Progress

SHARES = {"NORM": 0.38, "MI": 0.17, "CD": 0.15, "STTC": 0.13, "HYP": 0.10, "several": 0.05, "none": 0.02}
DIAGNOSES: dict[str, tuple[Diagnosis, ...]] = {
    "NORM": (),
    "MI": (
        Diagnosis("ASMI", 0.45, effects.infarct("anterior")),
        Diagnosis("AMI", 0.15, effects.infarct("anterior")),
        Diagnosis("IMI", 0.32, effects.infarct("inferior")),
        Diagnosis("LMI", 0.08, effects.infarct("lateral")),
    ),
    "CD": (
        Diagnosis("CRBBB", 0.29, effects.right_bundle),
        Diagnosis("IRBBB", 0.08, effects.right_bundle),
        Diagnosis("CLBBB", 0.31, effects.left_bundle),
        Diagnosis("LAFB", 0.12, effects.left_anterior),
        Diagnosis("IVCD", 0.12, effects.slow_ventricles),
        Diagnosis("1AVB", 0.08, effects.slow_av_node),
    ),
    "STTC": (
        Diagnosis("ISC_", 0.30, effects.ischaemia),
        Diagnosis("ISCAL", 0.25, effects.ischaemia),
        Diagnosis("NDT", 0.30, effects.inverted_t),
        Diagnosis("LNGQT", 0.15, effects.long_qt),
    ),
    "HYP": (
        Diagnosis("LVH", 0.85, effects.left_hypertrophy),
        Diagnosis("RVH", 0.15, effects.right_hypertrophy),
    ),
}
POPULATION = Population(0, SHARES, DIAGNOSES)

DATABASE_COLUMNS = (
    "ecg_id,patient_id,age,sex,site,device,recording_date,strat_fold,validated_by_human,scp_codes,filename_lr,filename_hr"
).split(",")
STATEMENT_COLUMNS = (
    ",description,diagnostic,form,rhythm,diagnostic_class,diagnostic_subclass,Statement Category,"
    "SCP-ECG Statement Description,AHA code,aECG REFID,CDISC Code,DICOM Code"
).split(",")
# code, description, kind, superclass, subclass
KNOWN_STATEMENTS = (
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


def write_records(tree: Tree, cohort: Cohort, subjects: list[Subject], sampling_rate: int, progress: Progress) -> None:
    rate = stored_rate(sampling_rate)
    damages = damaged(subjects)
    tree.put_table(DATABASE, DATABASE_COLUMNS, [_database_row(cohort, subject) for subject in subjects])
    tree.put_table(STATEMENTS, STATEMENT_COLUMNS, [_statement_row(*statement) for statement in KNOWN_STATEMENTS])
    for subject in subjects:
        damage = damages.get(subject.number)
        signal = damage_samples(cohort.signal(subject, rate), damage)
        stem = _stem(subject.number, rate)
        name = stem.rpartition("/")[2]
        header = [f"{name} {len(signal)} {rate} {signal.shape[1]}"]
        for lead, (first, checksum) in zip(LEADS, first_and_sum(signal), strict=False):
            header.append(f"{name}.dat 16 1000.0(0)/mV 16 0 {first} {checksum} 0 {lead.upper()}")
        tree.put_record(stem, header, ".dat", signal.T.astype("<i2").tobytes(), damage)
        progress.advance(1)
    tree.put_lines("RECORDS", [_stem(subject.number, rate) for subject in subjects])


def _stem(number: int, rate: int) -> str:
    return f"records{rate}/{number // 1000 * 1000:05d}/{number:05d}_{FILENAMES[rate].removeprefix('filename_')}"


def _database_row(cohort: Cohort, subject: Subject) -> list[object]:
    person = cohort.papers(subject.patient)
    age, sex, fold = draw_age(person), int(person.integers(2)), int(person.integers(1, 11))
    papers = cohort.papers(100_000 + subject.number)
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
        _stem(subject.number, 100),
        _stem(subject.number, 500),
    ]


def _statement_row(code: str, description: str, kind: str, superclass: str, subclass: str) -> list[str]:
    flags = ["1.0" if kind == column else "" for column in ("diagnostic", "form", "rhythm")]
    return [code, description, *flags, superclass, subclass, "", description, "", "", "", ""]
