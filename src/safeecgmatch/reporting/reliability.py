"""The reliability diagram of one run. Imports matplotlib only when asked to draw: training cells import this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from safeecgmatch.metrics import BINS, ece, probabilities_of, reliability
from safeecgmatch.predictions import reported_branch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, VERMILLION, GREY = "#0072B2", "#D55E00", "#666666"


def draw_reliability(
    axes: Axes, lower: npt.ArrayLike, confidence: npt.ArrayLike, accuracy: npt.ArrayLike, width: float = 1 / BINS
) -> None:
    """Bars: accuracy per bin; crosses: mean confidence, which lies on the diagonal's height if calibrated."""
    bars: dict[str, Any] = {"align": "edge", "color": BLUE, "alpha": 0.75, "edgecolor": "white", "linewidth": 0.5}
    axes.bar(lower, accuracy, width, label="accuracy of the bin", **bars)
    axes.plot(confidence, confidence, "x", color=VERMILLION, markersize=4, label="mean confidence of the bin")
    axes.plot([0, 1], [0, 1], "--", color=GREY, linewidth=0.8)
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])


def reliability_figure(predictions: Mapping[str, npt.NDArray], branch: str | None = None) -> Figure:
    """Accuracy against confidence on the test set, for the reported branch unless another is named."""
    from matplotlib.figure import Figure

    name = reported_branch(predictions) if branch is None else branch
    labels = predictions["test.label"]
    values = probabilities_of(predictions[f"test.log_probs.{name}"])
    count, confidence, accuracy = reliability(values.max(axis=1), values.argmax(axis=1) == labels)
    filled = count > 0
    figure = Figure(figsize=(3.6, 3.4), layout="constrained")
    axes = figure.subplots()
    draw_reliability(axes, np.linspace(0, 1, BINS + 1)[:-1][filled], confidence[filled], accuracy[filled])
    axes.set(xlabel="confidence", ylabel="accuracy")
    axes.legend(loc="upper left", fontsize=7, frameon=False)
    axes.set_title(f"{name} branch, test set, ECE {ece(values, labels):.3f}", fontsize=9)
    return figure
