"""What every branch says of validation and open test at every evaluation: the content of trajectory.npz.

`iteration`, `branch` (the reported one), `competes` (whether the evaluation may give the best weights) and each
temperature have one entry per evaluation. `<set>.log_probs.<branch>` and, where a branch has one, its unseen-class
score `<set>.ood_score.<branch>` have one row per evaluation, over the records of predictions.npz in their order; test
is the seen records of open test. Nothing here takes part in training or in the choice of the best weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safeecgmatch.engine.contract import Prediction

TEMPERATURE = "temperature."


def stored(values: Tensor) -> NDArray:
    """As it is kept in files."""
    return values.float().cpu().numpy()


class Trajectory:
    def __init__(self) -> None:
        self.iterations: list[int] = []
        self.branches: list[str] = []
        self.competes: list[bool] = []
        self.rows: dict[str, list[Tensor]] = {}

    def add(
        self,
        iteration: int,
        branch: str,
        competes: bool,
        sets: Mapping[str, Mapping[str, Prediction]],
        monitored: Mapping[str, float],
    ) -> None:
        """One evaluation: the predictions of each set by branch; of what is monitored, the temperatures."""
        self.iterations.append(iteration)
        self.branches.append(branch)
        self.competes.append(competes)
        for name, predictions in sets.items():
            for made_by, prediction in predictions.items():
                self._append(f"{name}.log_probs.{made_by}", prediction.log_probs)
                if prediction.ood_score is not None:
                    self._append(f"{name}.ood_score.{made_by}", prediction.ood_score)
        for name, value in monitored.items():
            if name.startswith(TEMPERATURE):
                self._append(name, torch.tensor(value, dtype=torch.float64))

    def _append(self, name: str, values: Tensor) -> None:
        values = values if name.startswith(TEMPERATURE) else values.float()
        self.rows.setdefault(name, []).append(values.cpu())

    def arrays(self) -> dict[str, NDArray]:
        header = {
            "iteration": np.array(self.iterations, dtype=np.int64),
            "branch": np.array(self.branches, dtype=np.str_),
            "competes": np.array(self.competes, dtype=np.bool_),
        }
        return header | {name: torch.stack(values).numpy() for name, values in self.rows.items()}

    def state(self) -> dict[str, Any]:
        return dict(vars(self))

    def load(self, state: dict[str, Any]) -> None:
        self.iterations, self.branches = list(state["iterations"]), list(state["branches"])
        self.competes = list(state["competes"])
        self.rows = {name: list(values) for name, values in state["rows"].items()}
