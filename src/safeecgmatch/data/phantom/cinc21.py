"""The phantom of the 2021 Challenge: its sources with rates and lengths of their own, its classes and headers."""

from __future__ import annotations

import struct

import numpy as np

from safeecgmatch.data.datasets.cinc21 import SINUS_RHYTHM
from safeecgmatch.data.phantom import effects
from safeecgmatch.data.phantom.archives import Signal, Tree, damage_samples, damaged, draw_age, first_and_sum
from safeecgmatch.data.phantom.diseases import Diagnosis
from safeecgmatch.data.phantom.patients import Cohort, Population, Subject, apportion
from safeecgmatch.leads import LEADS
from safeecgmatch.progress import Progress

SHARES = {"NORM": 0.37, "RHY": 0.17, "CD": 0.15, "ST": 0.12, "OTHER": 0.12, "several": 0.05, "none": 0.02}
DIAGNOSES: dict[str, tuple[Diagnosis, ...]] = {
    "NORM": (),
    "RHY": (
        Diagnosis("164889003", 0.42, effects.fibrillation),
        Diagnosis("164890007", 0.14, effects.flutter),
        Diagnosis("426177001", 0.16, effects.bradycardia),
        Diagnosis("427084000", 0.20, effects.tachycardia),
        Diagnosis("427393009", 0.08, effects.sinus_arrhythmia),
    ),
    "CD": (
        Diagnosis("713427006", 0.16, effects.right_bundle),
        Diagnosis("59118001", 0.16, effects.right_bundle),
        Diagnosis("713426002", 0.08, effects.right_bundle),
        Diagnosis("733534002", 0.18, effects.left_bundle),
        Diagnosis("164909002", 0.18, effects.left_bundle),
        Diagnosis("445118002", 0.08, effects.left_anterior),
        Diagnosis("698252002", 0.12, effects.slow_ventricles),
        Diagnosis("270492004", 0.04, effects.slow_av_node),
    ),
    "ST": (
        Diagnosis("429622005", 0.35, effects.ischaemia),
        Diagnosis("59931005", 0.30, effects.inverted_t),
        Diagnosis("164934002", 0.15, effects.inverted_t),
        Diagnosis("111975006", 0.20, effects.long_qt),
    ),
    "OTHER": (
        Diagnosis("427172004", 0.30, effects.ventricular_ectopy),
        Diagnosis("284470004", 0.20, effects.atrial_ectopy),
        Diagnosis("251146004", 0.20, effects.low_voltage),
        Diagnosis("39732003", 0.15, effects.left_axis),
        Diagnosis("47665007", 0.15, effects.right_axis),
    ),
}
POPULATION = Population(1, SHARES, DIAGNOSES)

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


def write_records(tree: Tree, cohort: Cohort, subjects: list[Subject], sampling_rate: int, progress: Progress) -> None:
    damages = damaged(subjects)
    counts = {source[0]: 0 for source in SOURCES}
    sources = apportion({source[0]: source[2] for source in SOURCES}, len(subjects))
    cohort.papers(0).shuffle(sources)
    folders: dict[str, list[str]] = {}
    for subject, source in zip(subjects, sources, strict=True):
        papers = cohort.papers(subject.number)
        _, prefix, _, rate, shortest, longest, spaced = next(entry for entry in SOURCES if entry[0] == source)
        damage = damages.get(subject.number)
        seconds = float(papers.integers(shortest, longest + 1))
        signal = damage_samples(cohort.signal(subject, rate, seconds), damage)
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
    for lead, (first, checksum) in zip(LEADS, first_and_sum(signal), strict=False):
        signed = checksum - 65536 if checksum > 32767 else checksum
        lines.append(f"{name}.mat {storage} 1000/mV 16 0 {first} {signed} 0 {lead}")
    return lines


def _challenge_remarks(subject: Subject, papers: np.random.Generator, spaced: bool) -> list[str]:
    age = draw_age(papers)
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
