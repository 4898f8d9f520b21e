"""The arrays that a finished cell stores, in predictions.npz and trajectory.npz; predictions.py reads them.

predictions.npz: `branch` is the reported branch, `temperature.*` are the final temperatures. For each of the sets
validation, test and open_test: `<set>.record` and `<set>.label` (K for an unseen class), the raw head outputs
`<set>.<head>.<branch>`, the final `<set>.log_probs.<branch>` and, where a method has one, its unseen-class score
`<set>.ood_score.<branch>`. What trajectory.npz holds says trajectory.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray]


@dataclass(frozen=True)
class PredictedSet:
    """One set through the final network; `scores` lacks the branches that have no unseen-class score of their own."""

    records: npt.NDArray
    labels: npt.NDArray
    heads: Arrays
    log_probs: Arrays
    scores: Arrays


def pack(branch: str, temperatures: Mapping[str, float], sets: Mapping[str, PredictedSet]) -> dict[str, npt.NDArray]:
    """The arrays of predictions.npz, in its order."""
    arrays = {"branch": np.array(branch)} | {name: np.array(value) for name, value in temperatures.items()}
    for name, predicted in sets.items():
        arrays |= {f"{name}.record": predicted.records, f"{name}.label": predicted.labels}
        arrays |= {f"{name}.{head}": values for head, values in predicted.heads.items()}
        for made_by, log_probs in predicted.log_probs.items():
            arrays[f"{name}.log_probs.{made_by}"] = log_probs
            if made_by in predicted.scores:
                arrays[f"{name}.ood_score.{made_by}"] = predicted.scores[made_by]
    return arrays


def write_arrays(file: Path, arrays: Arrays) -> None:
    np.savez(file, **arrays)  # type: ignore[arg-type]
