"""PhysioNet/CinC Challenge 2021: which records belong to exactly one diagnostic group.

Sinus rhythm (426783006) as the only code makes a record Normal. Otherwise a record belongs to the one group that its
codes hit; codes of no group are ignored. Rows are in the order of the record names as text.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from safeecgmatch.data.classes import CINC_GROUPS, SINUS_RHYTHM
from safeecgmatch.data.readers import Unreadable, read_text
from safeecgmatch.data.selection import MULTI_LABEL, NO_LABEL, UNREADABLE, UNSAFE, Candidate, Drop, Selection, is_safe
from safeecgmatch.errors import UserError


def diagnosis_codes(text: str) -> list[str]:
    """The codes of the first `#Dx:` or `# Dx:` line; none if there is no such line."""
    for line in text.splitlines():
        if line.startswith(("#Dx:", "# Dx:")):
            return [code for code in (part.strip() for part in line.partition(":")[2].split(",")) if code]
    return []


def groups_of(codes: list[str]) -> list[str]:
    """All groups that the codes hit, in the order of `CINC_GROUPS`; a repeated sinus rhythm code is not Normal."""
    if codes == [SINUS_RHYTHM]:
        return ["NORM"]
    return [name for name, members in CINC_GROUPS.items() if not members.isdisjoint(codes)]


def source_of(header: str) -> str:
    """`training/georgia/g1/E00001.hea` -> `georgia`; empty for a file that lies in no source's folder."""
    parts = header.split("/")[:-1]
    return next((part for part in parts if part != "training"), "")


def _judge(folder: Path, header: str) -> Candidate | Drop:
    record = PurePosixPath(header).stem
    if not is_safe(header):
        return Drop(record, UNSAFE, f"{header!r} is not a plain path inside the archive")
    try:
        codes = diagnosis_codes(read_text(folder / header))
    except Unreadable as error:
        return Drop(record, UNREADABLE, str(error))
    groups = groups_of(codes)
    if not groups:
        return Drop(record, NO_LABEL, "" if codes else "its header has no Dx code")
    if len(groups) > 1:
        return Drop(record, MULTI_LABEL)
    return Candidate(record, header, groups[0], source_of(header))


def find_headers(folder: Path) -> list[str]:
    """All `.hea` files below the folder, as relative paths."""
    return [
        (Path(parent) / name).relative_to(folder).as_posix()
        for parent, _, names in os.walk(folder)
        for name in names
        if name.endswith(".hea")
    ]


def select(folder: Path, files: Sequence[str] | None = None) -> Selection:
    """Judge the headers among `files` (relative paths, as in the archive's manifest), or all that are in the folder."""
    headers = find_headers(folder) if files is None else [file for file in files if file.endswith(".hea")]
    if not headers:
        raise UserError(f"{folder} holds no .hea file: run the download stage of cinc21 first.")
    verdicts = [_judge(folder, header) for header in sorted(headers, key=PurePosixPath)]
    candidates = [verdict for verdict in verdicts if isinstance(verdict, Candidate)]
    # Stable: of two records with one name the first by path comes first, and is the one that is kept.
    candidates.sort(key=lambda candidate: candidate.record)
    return Selection(candidates, [verdict for verdict in verdicts if isinstance(verdict, Drop)], [])
