"""PhysioNet/CinC Challenge 2021: which records belong to exactly one diagnostic group.

Sinus rhythm (426783006) as the only code makes a record Normal. Otherwise a record belongs to the one group that its
codes hit; codes of no group are ignored. Rows are in the order of the record names as text.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from safeecgmatch.data.descriptor import Dataset, Files, OpenSet, Switches
from safeecgmatch.data.readers import Archive, Unreadable
from safeecgmatch.data.selection import MULTI_LABEL, NO_LABEL, UNREADABLE, UNSAFE, Candidate, Drop, Verdicts, is_safe
from safeecgmatch.errors import UserError

SEEN, UNSEEN = ("NORM", "RHY", "CD"), ("ST", "OTHER")
# What the published code does at 60 %: another task, not another contamination.
RELEASE_LEVEL = 60
RELEASE_SEEN, RELEASE_UNSEEN = ("RHY", "CD", "OTHER"), ("NORM", "ST")
CINC60 = ("same_classes", "swapped_fixed")

SINUS_RHYTHM = "426783006"  # alone on a record: Normal

# SNOMED CT codes of the four abnormal groups.
GROUPS: dict[str, frozenset[str]] = {
    "RHY": frozenset("164889003 164890007 426627000 10370003 427393009 426177001 427084000".split()),
    "CD": frozenset(
        "6374002 733534002 713427006 270492004 713426002 445118002 164909002 698252002 59118001 233917008 27885002 "
        "195042002 426183003 251120003 445211001 65778007 74390002".split()
    ),
    "ST": frozenset(
        "111975006 164934002 59931005 425419005 425623009 428750005 55930002 429622005 164931005 164930006".split()
    ),
    "OTHER": frozenset(
        "39732003 251146004 284470004 365413008 427172004 164917005 47665007 63593006 17338001 164884008 "
        "164947007".split()
    ),
}


def diagnosis_codes(text: str) -> list[str]:
    """The codes of the first `#Dx:` or `# Dx:` line; none if there is no such line."""
    for line in text.splitlines():
        if line.startswith(("#Dx:", "# Dx:")):
            return [code for code in (part.strip() for part in line.partition(":")[2].split(",")) if code]
    return []


def groups_of(codes: list[str]) -> list[str]:
    """All groups that the codes hit, in the order of `GROUPS`; a repeated sinus rhythm code is not Normal."""
    if codes == [SINUS_RHYTHM]:
        return ["NORM"]
    return [name for name, members in GROUPS.items() if not members.isdisjoint(codes)]


def source_of(header: str) -> str:
    """`training/georgia/g1/E00001.hea` -> `georgia`; empty for a file that lies in no source's folder."""
    parts = header.split("/")[:-1]
    return next((part for part in parts if part != "training"), "")


def _judge(archive: Archive, header: str) -> Candidate | Drop:
    record = PurePosixPath(header).stem
    if not is_safe(header):
        return Drop(record, UNSAFE, f"{header!r} is not a plain path inside the archive")
    try:
        codes = diagnosis_codes(archive.text(header))
    except Unreadable as error:
        return Drop(record, UNREADABLE, str(error))
    groups = groups_of(codes)
    if not groups:
        return Drop(record, NO_LABEL, "" if codes else "its header has no Dx code")
    if len(groups) > 1:
        return Drop(record, MULTI_LABEL)
    return Candidate(record, header, groups[0], source_of(header))


def select(archive: Archive, sampling_rate: int) -> Verdicts:
    """Judge the archive's headers; the records have rates of their own, and the filter resamples them."""
    headers = [file for file in archive.files or () if file.endswith(".hea")]
    if not headers:
        raise UserError(f"{archive.folder} holds no .hea file: run the download stage of cinc21 first.")
    verdicts = Verdicts.of([_judge(archive, header) for header in sorted(headers, key=PurePosixPath)])
    # Stable: of two records with one name the first by path comes first, and is the one that is kept.
    verdicts.candidates.sort(key=lambda candidate: candidate.record)
    return verdicts


def other_task(ood: int, switches: Switches) -> OpenSet | None:
    """`cinc60: same_classes` is the paper's reading. `swapped_fixed` is the published code's: another rule at every
    level, and at 60 % other classes as well."""
    reading = switches["cinc60"]
    if reading not in CINC60:
        raise UserError(f"The switch cinc60 is {reading!r}: it must be one of {', '.join(CINC60)}.")
    if reading == "same_classes":
        return None
    if ood == RELEASE_LEVEL:
        return OpenSet(RELEASE_SEEN, RELEASE_UNSEEN, "fixed_split")
    return OpenSet(SEEN, UNSEEN, "all_unseen")


DATASET = Dataset(
    url="https://physionet.org/files/challenge-2021/1.0.3/",
    # About 13.5 GB in 88,253 signal files, most of 10 s, some of 30 minutes.
    files=lambda sampling_rate: Files("training", "mat", 155_000),
    select=select,
    seen=SEEN,
    unseen=UNSEEN,
    preprocessing=lambda switches: switches["cinc_preprocessing"],
    other_task=other_task,
)
