"""The claims in a terminal: all in a table, or one with everything behind its verdict."""

from __future__ import annotations

import textwrap

import pandas as pd

from safeecgmatch.reporting.verdicts import GAINS, Judgement

INDENT = " " * 19


def paragraph(text: str, width: int, first: str = INDENT) -> str:
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=INDENT, break_on_hyphens=False)


def claims_text(judgements: list[Judgement], notes: list[str], width: int) -> str:
    """One block per claim: id, verdict and sentence; then reading and size; then the evidence."""
    blocks = [textwrap.fill(note, width) for note in [*notes, GAINS]]
    for judged in judgements:
        marks = [f"Under {judged.reading}." if judged.reading else "", f"Size: {judged.size}." if judged.size else ""]
        details = " ".join([*(mark for mark in marks if mark), judged.evidence])
        heading = paragraph(judged.claim.plain, width, f"{judged.id:5}{judged.verdict:14}")
        blocks.append(f"{heading}\n{paragraph(details, width)}")
    return "\n\n".join(blocks)


def claim_text(judgement: Judgement, notes: list[str], width: int) -> str:
    """Everything about one claim: its rule, and every comparison under every reading."""
    claim = judgement.claim
    facts = {
        "Claim": claim.plain,
        "Place": claim.place,
        "Decided by": claim.decided_by,
        "Criterion": claim.criterion,
        "Reduced size": claim.reduced,
        "Verdict": f"{judgement.verdict}{f', under {judgement.reading}' if judgement.reading else ''}",
        "Size": judgement.size,
        "Evidence": judgement.evidence,
        "Correction": "Holm over the primary claims" if claim.primary else "none; descriptive",
    }
    blocks = [textwrap.fill(note, width) for note in [*notes, GAINS]]
    blocks.append("\n".join(paragraph(text, width, f"{name:19}") for name, text in facts.items() if text))
    for verdict in judgement.readings:
        lines = [f"Reading: {verdict.reading.text or 'none is open'} - {verdict.verdict}"]
        for result in verdict.results:
            powers = [part.power for part in result.parts if not pd.isna(part.power)]
            power = f", power {min(powers):.2f}" if powers else ""
            seeds = f" ({result.seeds} seeds{power})" if result.seeds else ""
            role = "" if result.check.decides else " [described]"
            lines.append(paragraph(f"{result.outcome(verdict.level):8}{result.sentence}{seeds}{role}", width, "  "))
        blocks.append("\n".join(lines))
    if judgement.finding:
        lines = [f"Audit: {judgement.finding.title}", *(f"  {line}" for line in judgement.finding.evidence)]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
