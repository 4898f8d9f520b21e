"""The claims in a terminal: one sentence about each, or everything behind the verdict on one."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence

from safeecgmatch.reporting.checks import CheckResult, Part, extremes, power_of, reasons, row_label, tally
from safeecgmatch.reporting.names import metric_name
from safeecgmatch.reporting.study import Study, report_folder
from safeecgmatch.reporting.verdicts import GAINS, Judgement, ReadingVerdict, at_this_size, lacking

INDENT = " " * 19
WORDS = {"supported": "Holds", "refuted": "Fails", "inconclusive": "Open"}
HEADS = ("setting", "metric", "gain", "95 % interval", "placebo", "floor", "power", "seeds", "outcome", "rival")
RIGHT = ("gain", "placebo", "floor", "power", "seeds")
Line = tuple[str, ...]


def paragraph(text: str, width: int, first: str = INDENT) -> str:
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=INDENT, break_on_hyphens=False)


def heading(study: Study) -> str:
    """Which study speaks, and how much of it there is."""
    params, states = study.params, study.runs["state"]
    done = f"{(states == 'done').sum()} of {len(states)} cells"
    return f"Study {params.profile}, protocol {params.protocol}: {done} ({report_folder(params)}/README.md)"


def claims_text(judgements: list[Judgement], notes: list[str], width: int) -> str:
    """One block per claim: id, verdict and the paper's sentence; then one on what the study says; the notes last."""
    blocks = [
        f"{paragraph(judged.claim.plain, width, f'{judged.id:5}{judged.verdict:14}')}\n"
        f"{paragraph(f'-> {finding(judged)}', width)}"
        for judged in judgements
    ]
    stated = [f"At this size {size}" for size in at_this_size(judgements)]
    more = "The comparisons behind a verdict: `safeecgmatch claims C5`."
    return "\n\n".join([*blocks, *(textwrap.fill(note, width) for note in [more, *stated, *notes])])


def finding(judged: Judgement) -> str:
    """What the study, or the audit where that decides, says about a claim: one sentence."""
    if judged.claim.untested:
        return judged.claim.untested.strip()
    if judged.claim.audit_decides and judged.finding:
        return f"By the paper's own numbers: {judged.finding.text}"
    if judged.verdict == "not tested":
        return lacking(judged.readings)
    size = " at this size" if judged.size else ""
    under = f" under {judged.reading}" if judged.reading else ""
    chosen = [reading for reading in judged.readings if reading.verdict == judged.verdict]
    others = Counter(reading.verdict for reading in judged.readings if reading.verdict != judged.verdict)
    rest = "".join(f"; {word} under {count} other{'s' * (count > 1)}" for word, count in others.items())
    return f"{WORDS[judged.verdict]}{size}{under}: {outcomes(chosen)}{rest}."


def outcomes(readings: Sequence[ReadingVerdict]) -> str:
    """How the comparisons that decide came out, and with how many seeds; where that left them open, with what power."""
    results = [result for reading in readings for result in reading.deciding]
    power = power_of(results) if readings[0].verdict == "inconclusive" else ""
    seeds = extremes([result.seeds for result in results if not result.absent], "d")
    return f"{tally(results, readings[0].level)} ({seeds} seeds{f', {power}' if power else ''})"


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
        "Finding": finding(judgement),
        "Size": judgement.size,
        "Correction": "Holm over the primary claims" if claim.primary else "none; descriptive",
    }
    blocks = ["\n".join(paragraph(text, width, f"{name:19}") for name, text in facts.items() if text)]
    for verdict in judgement.readings:
        reading = f"Reading: {verdict.reading.text or 'none is open'} - {verdict.verdict}"
        blocks.append("\n".join([reading, *comparisons(verdict, width)]))
    if judgement.finding:
        lines = [f"Audit: {judgement.finding.title}", *(f"  {line}" for line in judgement.finding.evidence)]
        blocks.append("\n".join(lines))
    return "\n\n".join([*blocks, *(textwrap.fill(note, width) for note in [GAINS, *notes])])


def comparisons(verdict: ReadingVerdict, width: int) -> list[str]:
    """A table of what was compared, headed by whom with whom; what could not be compared is said below, once."""
    groups: dict[str, list[CheckResult]] = {}
    for result in verdict.results:
        groups.setdefault(title_of(result), []).append(result)
    lines: list[Line] = [HEADS]
    for title, results in groups.items():
        found = [line for result in results if not result.absent for line in rows_of(result, verdict.level)]
        lines += [(title,), *found] if found else []
    missing = [
        textwrap.fill(text, width, initial_indent="  ", subsequent_indent="    ") for text in reasons(verdict.results)
    ]
    return [*(aligned(lines) if len(lines) > 1 else []), *missing]


def title_of(result: CheckResult) -> str:
    check = result.check
    described = "" if check.decides else " (described)"
    if check.kind == "purity":
        return f"Unseen share among accepted records (the share itself, no gain), against that of the pool{described}"
    if check.kind == "best":
        whose = "strongest rival" + " but one" * check.but
        return f"{row_label(result.candidate)} over its {whose} of Table 3{described}"
    return f"{row_label(result.candidate)} over {row_label(result.rival)}{described}"


def rows_of(result: CheckResult, level: float) -> Iterable[Line]:
    """A line for each metric; the outcome, which is that of all of them, is in the first."""
    for number, part in enumerate(result.parts):
        outcome = result.outcome(level) if number == 0 else ""
        rival = row_label(result.rival) if result.check.kind == "best" else ""
        scaled = " (T)" if result.check.scaling == "posthoc" and part.metric != "acc" else ""
        sign = "" if result.check.kind == "purity" else "+"
        yield (
            result.where,
            f"{metric_name(part.metric)}{scaled}",
            f"{part.estimate:{sign}.3f}",
            f"[{part.low:{sign}.3f}, {part.high:{sign}.3f}]",
            *numbers(part),
            str(result.seeds),
            outcome,
            rival,
        )


def numbers(part: Part) -> Line:
    forms = {"placebo": "+.3f", "floor": ".3f", "power": ".2f"}
    return tuple("" if math.isnan(value := getattr(part, name)) else f"{value:{form}}" for name, form in forms.items())


def aligned(lines: list[Line]) -> list[str]:
    """Columns as wide as what is in them, without those that are empty; a line of one cell is a title."""
    columns = list(zip(*(line for line in lines if len(line) > 1), strict=True))
    forms = {
        place: f"{'>' if name in RIGHT else '<'}{max(map(len, columns[place]))}"
        for place, name in enumerate(HEADS)
        if any(columns[place][1:])
    }
    return [
        line[0]
        if len(line) == 1
        else f"  {'  '.join(format(line[place], form) for place, form in forms.items())}".rstrip()
        for line in lines
    ]
