"""CaliMatch where nobody trained it: the time branch of SafeECGMatch with learned temperatures, which under one seed
has the weights and the trajectory of CaliMatch, byte for byte, taken at the epoch that CaliMatch would have chosen.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from safeecgmatch.cells import Cell
from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.predictions import Arrays, own_best, predictions_at
from safeecgmatch.protocols import switches
from safeecgmatch.reporting.stored import StoredCell

CALIMATCH, LEARNED_T = "calimatch", "learned_t"
BRANCH, OWN = ".time", ".main"  # of the run, and as CaliMatch calls its only one


def fitted(params: Params) -> bool:
    """Whether the main run of SafeECGMatch fits its temperatures on validation."""
    overrides = params.methods.get(PROPOSED, {}).get("switches", {})
    return switches(PROPOSED, params.protocol, overrides)["temperatures"] == "validation"


def is_derived(params: Params) -> bool:
    """Whether the study has CaliMatch by its twin alone."""
    return CALIMATCH not in params.grid.methods and LEARNED_T in params.readings and fitted(params)


def _renamed(arrays: Arrays) -> dict[str, np.ndarray]:
    """The arrays of the one branch and those that belong to none."""
    kept = {key: values for key, values in arrays.items() if not key.endswith((".freq", ".fused"))}
    return {key.removesuffix(BRANCH) + OWN if key.endswith(BRANCH) else key: values for key, values in kept.items()}


def calimatch_of(learned: StoredCell) -> StoredCell:
    """`learned` is a finished cell of `learned_t`."""
    cell = Cell(learned.cell.dataset, CALIMATCH, learned.cell.ood, learned.cell.seed)
    epoch = own_best(learned.predictions, learned.trajectory, "time")
    chosen = _renamed(predictions_at(learned.predictions, learned.trajectory, epoch)) | {"branch": np.array("main")}
    trajectory = _renamed(learned.trajectory)
    trajectory["branch"] = np.full(trajectory["iteration"].shape, "main")
    right = trajectory["validation.log_probs.main"].argmax(axis=2) == chosen["validation.label"]
    history = learned.history.drop(columns=[name for name in learned.history if str(name).endswith(".freq")])
    history = history.rename(columns=lambda name: str(name).removesuffix(BRANCH) + OWN * str(name).endswith(BRANCH))
    facts = {"best_iteration": int(trajectory["iteration"][epoch]), "best_val_accuracy": float(right[epoch].mean())}
    return replace(
        learned,
        cell=cell,
        config={**learned.config, "cell": cell.describe()},
        summary={**learned.summary, **facts},
        predictions=chosen,
        trajectory=trajectory,
        history=history.assign(val_accuracy=right.mean(axis=1)),
    )
