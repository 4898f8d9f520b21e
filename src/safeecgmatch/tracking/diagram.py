"""The reliability diagram that each MLflow run carries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from safeecgmatch.metrics import BINS, ece, probabilities_of, reliability
from safeecgmatch.predictions import reported_branch


def draw_reliability(predictions: dict[str, np.ndarray], title: str, target: Path) -> None:
    """Accuracy against confidence on the test set, for the branch that is reported. pyplot would cost start-up time."""
    branch = reported_branch(predictions)
    probabilities = probabilities_of(predictions[f"test.log_probs.{branch}"])
    labels = predictions["test.label"]
    correct = probabilities.argmax(axis=1) == labels
    count, _, accuracy = reliability(probabilities.max(axis=1), correct)
    left = np.arange(BINS) / BINS
    figure = Figure(figsize=(4.5, 4.5))  # in fixed margins: a layout engine draws everything twice
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.12, 0.11, 0.84, 0.77))
    axes.bar(left, np.nan_to_num(accuracy), width=1 / BINS, align="edge", edgecolor="white", label="accuracy")
    axes.bar(left, count / max(count.sum(), 1), width=0.4 / BINS, align="edge", color="0.6", label="share of records")
    axes.plot([0, 1], [0, 1], "k--", linewidth=1, label="perfectly calibrated")
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy")
    error = ece(probabilities, labels)
    axes.set_title(f"{title}, branch {branch}\nECE {error:.4f}, {len(labels)} test records", fontsize="medium")
    axes.legend(loc="upper left", fontsize="small")
    figure.savefig(target, dpi=100)
