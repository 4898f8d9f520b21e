"""Verdicts on the paper's claims, by the rules of claims.yaml, from what `evaluate` wrote.

supported, refuted, inconclusive (with the power that there was) or not tested (and why). Generated data give no
verdict; a study on real data of another size than the paper's gives verdicts that are marked with its size.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pandas as pd

from safeecgmatch.reporting.audits import AUDITS, Finding
from safeecgmatch.reporting.checks import (
    NOT_IN_STUDY,
    CheckResult,
    check_in,
    power_of,
    reasons,
    row_label,
    tally,
)
from safeecgmatch.reporting.claims import Claim, Claims, Reading, load_claims, rule_note, seed_note
from safeecgmatch.reporting.contrasts import OWN
from safeecgmatch.reporting.deviations import barriers, deviations
from safeecgmatch.reporting.names import dataset_name, metric_name, setting_name
from safeecgmatch.reporting.statistics import (
    holm,
)
from safeecgmatch.reporting.study import Study

Word = Literal["supported", "refuted", "inconclusive", "not tested"]
GAINS = "A gain is positive where SafeECGMatch, or the method named first, is better, in ECE as in ACC; 95 % intervals."
PLACEBO = "Placebo, the gain of the second of two branches of the same kind over the first, each at its own best epoch:"
SHOWN = 1  # comparisons in the evidence of one reading; the evidence frame has all of them


@dataclass(frozen=True)
class ReadingVerdict:
    """A claim under one reading; p values are those for and against the claim, Holm's if it is primary."""

    reading: Reading
    results: list[CheckResult]
    p_support: float
    p_refute: float
    level: float

    @property
    def deciding(self) -> list[CheckResult]:
        return [result for result in self.results if result.check.decides]

    @property
    def verdict(self) -> Word:
        if all(result.absent for result in self.deciding):
            return "not tested"
        return (
            "supported"
            if self.p_support <= self.level
            else "refuted"
            if self.p_refute <= self.level
            else "inconclusive"
        )

    @property
    def evidence(self) -> str:
        """What decided, or what was open and with which power."""
        found = [result for result in self.deciding if not result.absent]
        if not found:
            return f"{'; '.join(reasons(self.deciding))}."
        wanted = {"supported": "holds", "refuted": "fails"}.get(self.verdict, "open")
        first = [result for result in found if result.outcome(self.level) == wanted]
        shown = (first or sorted(found, key=lambda result: result.p_hold))[:SHOWN]
        power = power_of(found) if self.verdict == "inconclusive" else ""
        told = "; ".join(result.sentence for result in shown)
        seeds = min(result.seeds for result in found)
        return f"{told} ({tally(self.deciding, self.level)}; {seeds} seeds{f'; {power}' if power else ''})."


@dataclass(frozen=True)
class Judgement:
    """The verdict on one claim over its readings; `size` marks one from runs that are not of the paper's size."""

    id: str
    claim: Claim
    verdict: Word
    reading: str
    evidence: str
    size: str = ""
    readings: list[ReadingVerdict] = field(default_factory=list)
    finding: Finding | None = None


def judge(study: Study, claims: Claims | None = None) -> list[Judgement]:
    """Every claim of claims.yaml, in its order."""
    claims = claims or load_claims()
    judged = {
        name: [_under(study, claims, claim, reading) for reading in claims.readings_of(claim, study.params.protocol)]
        for name, claim in claims.claims.items()
    }
    _correct(judged, claims)
    return [_over_readings(study, name, claims.claims[name], judged[name]) for name in judged]


def _under(study: Study, claims: Claims, claim: Claim, reading: Reading) -> ReadingVerdict:
    results = [
        check_in(study, claims, check, claims.settings[setting], reading)
        for test in claim.tests
        for check in test.scaled
        for setting in check.settings
    ]
    deciding = [result for result in results if result.check.decides]
    present = [result for result in deciding if not result.absent]
    here = [result for result in deciding if result.absent != NOT_IN_STUDY] if claim.combine == "any" else deciding
    complete = bool(present) and len(present) == len(here)
    hold, fail = [result.p_hold for result in present], [result.p_fail for result in present]
    if claim.combine == "all":
        support = max(hold) if complete else math.nan
        refute = min(1.0, len(fail) * min(fail)) if present else math.nan
    else:
        support = min(1.0, len(hold) * min(hold)) if present else math.nan
        refute = max(fail) if complete else math.nan
    return ReadingVerdict(reading, results, support, refute, claims.level)


def _correct(judged: dict[str, list[ReadingVerdict]], claims: Claims) -> None:
    """Holm over the primary claims, within each reading."""
    families: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for name, verdicts in judged.items():
        for index, verdict in enumerate(verdicts):
            if claims.claims[name].primary:
                families[verdict.reading.text].append((name, index))
    for members in families.values():
        support = holm([judged[name][index].p_support for name, index in members])
        refute = holm([judged[name][index].p_refute for name, index in members])
        for (name, index), p_support, p_refute in zip(members, support, refute, strict=True):
            judged[name][index] = replace(judged[name][index], p_support=p_support, p_refute=p_refute)


def _over_readings(study: Study, name: str, claim: Claim, readings: list[ReadingVerdict]) -> Judgement:
    finding = AUDITS[claim.audit]() if claim.audit else None
    audit = f" Audit: {finding.text}" if finding else ""
    if claim.untested:
        return Judgement(name, claim, "not tested", "", f"{claim.untested}{audit}", finding=finding)
    if claim.audit_decides and finding:
        word: Word = "supported" if finding.holds else "refuted"
        return Judgement(name, claim, word, "", f"By the paper's own numbers: {finding.text}", "", readings, finding)
    by_word: dict[str, list[ReadingVerdict]] = defaultdict(list)
    for verdict in readings:
        by_word[verdict.verdict].append(verdict)
    if by_word["supported"]:
        word = "supported"
    elif len(by_word["refuted"]) == len(readings):
        word = "refuted"
    else:
        word = "not tested" if len(by_word["not tested"]) == len(readings) else "inconclusive"
    chosen = by_word[word] if word != "not tested" else []
    texts = [verdict.reading.text for verdict in chosen if verdict.reading.text]
    under = "all readings" if len(texts) == len(readings) > 1 else "; ".join(texts)
    said: dict[str, list[str]] = defaultdict(list)  # what readings have in common is said once
    for verdict in readings:
        said[f"{verdict.verdict}. {verdict.evidence}"].append(verdict.reading.text)
    alone = len(said) == 1
    parts = [
        text.partition(". ")[2] if alone else f"{'; '.join(names).capitalize()}: {text}" for text, names in said.items()
    ]
    evidence = f"{lacking(readings) if word == 'not tested' else ' '.join(parts)}{audit}"
    size = size_note(study, readings) if word != "not tested" else ""
    return Judgement(name, claim, word, under, evidence, size, readings, finding)


def lacking(readings: list[ReadingVerdict]) -> str:
    """Why no comparison was possible: one reason; `safeecgmatch claims C5` lists all."""
    first, *further = dict.fromkeys(result.absent for reading in readings for result in reading.deciding)
    more = f", and so on for {len(further)} other comparison{'s' * (len(further) > 1)}" if further else ""
    return f"{first[0].upper()}{first[1:]}{more}."


def size_note(study: Study, readings: list[ReadingVerdict]) -> str:
    """The datasets that a verdict rests on, where some are missing, and their sizes where these are not the paper's."""
    deciding = [result for verdict in readings for result in verdict.deciding]
    used = dict.fromkeys(result.setting.dataset for result in deciding if not result.absent)
    alone = [" alone"] if any(result.setting.dataset not in used for result in deciding) else []
    rows = deviations(study.params)
    notes = {f"{dataset_name(name).name}{''.join(alone)}": barriers(rows, name) for name in used}
    return "; ".join(
        f"{name}: {', '.join(parts)}" if parts else name for name, parts in notes.items() if parts or alone
    )


def at_this_size(judgements: list[Judgement]) -> list[str]:
    """Each size that is not the paper's once, behind the claims that it marks."""
    marked: dict[str, list[str]] = {}
    for judgement in (judgement for judgement in judgements if judgement.size):
        marked.setdefault(judgement.size, []).append(judgement.id)
    return [f"({', '.join(claims)}): {size}." for size, claims in marked.items()]


def notes(study: Study) -> list[str]:
    """What a reader of verdicts has to know first: which rules, which seeds, and how large nothing is."""
    frame = study.contrasts
    shown = frame[frame["candidate"].str.endswith(OWN) & frame["metric"].isin(["acc", "ece"])]
    columns = ["dataset", "ood", "candidate", "metric", "scaling", "estimate", "low", "high"]
    found = [
        f"{setting_name(dataset, ood)}, {row_label(row)}, {metric_name(metric)}"
        f"{' after scaling' * (scaling == 'posthoc')} {estimate:+.3f} [{low:+.3f}, {high:+.3f}]"
        for dataset, ood, row, metric, scaling, estimate, low, high in shown[columns].to_numpy().tolist()
    ]
    placebos = f"{PLACEBO} {'; '.join(found) or 'not run'}."
    return [rule_note(study.runs), seed_note(study.params), placebos]


def claims_frame(judgements: list[Judgement]) -> pd.DataFrame:
    """One line per claim."""
    lines = [
        {**claim.model_dump(), **vars(judged), "claim": claim.plain}
        for judged, claim in ((judged, judged.claim) for judged in judgements)
    ]
    return pd.DataFrame(lines, columns=CLAIM_COLUMNS)


CLAIM_COLUMNS = [
    "id", "verdict", "claim", "place", "decided_by", "criterion", "reading", "evidence", "size", "primary",
]  # fmt: skip
EVIDENCE_COLUMNS = [
    "id", "reading", "verdict", "setting", "kind", "metric", "scaling", "candidate", "rival", "decides", "outcome",
    "relation", "estimate", "low", "high", "placebo", "floor", "p_hold", "p_fail", "power", "seeds", "records",
    "absent",
]  # fmt: skip


def evidence_frame(judgements: list[Judgement]) -> pd.DataFrame:
    """One line per claim, reading, comparison, setting and metric."""
    lines: list[dict[str, Any]] = []
    for judgement in judgements:
        for verdict in judgement.readings:
            for result in verdict.results:
                named = {"id": judgement.id, "reading": verdict.reading.text, "verdict": verdict.verdict}
                said = {"setting": result.where, "outcome": result.outcome(verdict.level)}
                common = {**result.check.model_dump(), **vars(result), **named, **said}
                lines += [common | vars(part) for part in result.parts] or [common]
    return pd.DataFrame(lines, columns=EVIDENCE_COLUMNS)
