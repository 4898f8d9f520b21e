"""The reliability diagram that each MLflow run carries.

An SVG from the numbers themselves: to import matplotlib takes each cell of `dvc repro` as long as all of its upload.
"""

from __future__ import annotations

from html import escape

import numpy as np

from safeecgmatch.metrics import BINS, ece, probabilities_of, reliability
from safeecgmatch.predictions import reported_branch

SIZE = 300  # of the plot; y grows downwards
HEAD = f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="-60 -60 {SIZE + 80} {SIZE + 110}" font-family="sans-serif" \
font-size="12">
<rect x="-60" y="-60" width="100%" height="100%" fill="white"/>"""
AXES = f"""\
<path d="M0 0 V{SIZE} H{SIZE}" fill="none" stroke="black"/>
<path d="M0 {SIZE} L{SIZE} 0" stroke="black" stroke-dasharray="4"/>
<text x="{SIZE / 2}" y="{SIZE + 36}" text-anchor="middle">confidence</text>
<text x="-36" y="{SIZE / 2}" text-anchor="middle" transform="rotate(-90 -36 {SIZE / 2})">accuracy</text>
<text x="8" y="16"><tspan fill="steelblue">accuracy</tspan>, <tspan fill="dimgray">share of records</tspan></text>
</svg>
"""


def reliability_diagram(predictions: dict[str, np.ndarray], title: str) -> str:
    """Accuracy against confidence on the test set, for the branch that is reported."""
    branch = reported_branch(predictions)
    probabilities = probabilities_of(predictions[f"test.log_probs.{branch}"])
    labels = predictions["test.label"]
    count, _, accuracy = reliability(probabilities.max(axis=1), probabilities.argmax(axis=1) == labels)
    parts = [HEAD]
    subtitle = f"ECE {ece(probabilities, labels):.4f}, {len(labels)} test records"
    for y, text in ((-34, f"{title}, branch {branch}"), (-16, subtitle)):
        parts.append(f'<text x="{SIZE / 2}" y="{y}" text-anchor="middle">{escape(text)}</text>')
    for number, (height, share) in enumerate(zip(np.nan_to_num(accuracy), count / max(count.sum(), 1), strict=True)):
        parts += [bar(number, height, 1.0, "steelblue"), bar(number, share, 0.4, "dimgray")]
    for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        parts.append(f'<text x="{tick * SIZE:.0f}" y="{SIZE + 18}" text-anchor="middle">{tick}</text>')
        parts.append(f'<text x="-6" y="{(1 - tick) * SIZE + 4:.0f}" text-anchor="end">{tick}</text>')
    return "\n".join([*parts, AXES])


def bar(number: int, height: float, wide: float, colour: str) -> str:
    """Of the bin `number`; `wide` is its share of the bin's width."""
    x, y, width = number * SIZE / BINS, (1 - height) * SIZE, wide * SIZE / BINS
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{SIZE - y:.1f}" fill="{colour}" stroke="white"/>'
