"""How good the refusal is on records whose class is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from safeecgmatch.data.datasets import find_dataset
from safeecgmatch.data.readers import Archive
from safeecgmatch.metrics import REFUSED, refusal_metrics
from safeecgmatch.predicting.answers import SEEN, Answer


def labels_in(folder: Path, dataset: str, sampling_rate: int) -> dict[str, str]:
    """The class of every single-label record of an archive, by the path of its header."""
    described = find_dataset(dataset)
    listed = dict.fromkeys(described.files(sampling_rate).present_in(folder), "")
    selected = described.select(Archive(folder, listed), sampling_rate)
    return {candidate.header: candidate.label for candidate in selected.candidates}


def judge(answers: Sequence[Answer], classes: Sequence[str]) -> dict[str, Any]:
    """Accuracy on what is accepted, coverage, and accuracy when the least certain are refused.

    A record of an unseen class cannot be answered rightly: accepted, it is an error. Certainty is the unseen score's.
    """
    right = np.array([answer["predicted"] == answer["label"] for answer in answers])
    accepted = np.array([answer["verdict"] == SEEN for answer in answers])
    seen = np.array([answer["label"] in classes for answer in answers])

    def share(hits: np.ndarray, among: np.ndarray) -> float | None:
        return float(hits[among].mean()) if among.any() else None

    return {
        "records": len(answers),
        "of_seen_classes": int(seen.sum()),
        "of_unseen_classes": int((~seen).sum()),
        "coverage": float(accepted.mean()),
        "accuracy_on_accepted": share(right, accepted),
        "accuracy_on_accepted_of_seen_classes": share(right, accepted & seen),
        "seen_accepted": share(accepted, seen),
        "unseen_refused": share(~accepted, ~seen),
        **refusal_metrics(right, [answer["unseen_score"] for answer in answers]),
    }


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def as_text(report: dict[str, Any]) -> str:
    shares = {name: _percent(value) for name, value in report.items() if value is None or isinstance(value, float)}
    return f"""\
{report["records"]:,} labelled records, {report["of_seen_classes"]:,} of them of seen classes.
Coverage: {shares["coverage"]} are accepted; {shares["seen_accepted"]} of those of seen classes are, and
{shares["unseen_refused"]} of the others are refused.
Accuracy on the accepted: {shares["accuracy_on_accepted"]}, where an accepted record of an unseen class is wrong;
on the accepted of seen classes alone: {shares["accuracy_on_accepted_of_seen_classes"]}.
Least certain refused {"".join(f"{refused:>7} %" for refused in REFUSED)}
Accuracy on the rest  {"".join(f"{shares[f'acc_refusing_{refused}']:>9}" for refused in REFUSED)}
Area under the risk-coverage curve: {report["aurc"]:.4f}."""
