"""What a finished cell's predictions.npz and trajectory.npz say; the engine names their arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from safeecgmatch.errors import DamagedFile
from safeecgmatch.metrics import (
    acceptance_threshold,
    closed_set_metrics,
    open_set_metrics,
    probabilities_of,
    refusal_metrics,
    scaled_log_probabilities,
)

Arrays = Mapping[str, npt.NDArray]

ACCEPTED_SHARE = 0.95  # of seen validation records, at the threshold that summary.json states
OWN_SCORE, CONFIDENCE_SCORE = "the method's own", "1 - max probability"  # where an unseen-class score comes from


def read_arrays(file: Path) -> dict[str, npt.NDArray]:
    try:
        with np.load(file, allow_pickle=False) as stored:
            return dict(stored)
    except (BadZipFile, EOFError) as error:
        raise DamagedFile(file, error) from error


def predictions_at(predictions: Arrays, trajectory: Arrays, epoch: int) -> dict[str, npt.NDArray]:
    """What predictions.npz would hold, but for head outputs, had the network of evaluation `epoch` been chosen."""
    arrays = {"branch": trajectory["branch"][epoch]}
    seen = predictions["open_test.label"] < predictions[f"test.log_probs.{reported_branch(predictions)}"].shape[1]
    for name in ("validation", "test", "open_test"):
        arrays |= {key: predictions[key] for key in (f"{name}.record", f"{name}.label")}
    for key, values in trajectory.items():
        if key.startswith(("temperature.", "validation.", "open_test.")):
            arrays[key] = values[epoch]
            if key.startswith("open_test."):
                arrays[f"test.{key.removeprefix('open_test.')}"] = values[epoch][seen]
    return arrays


def own_best(predictions: Arrays, trajectory: Arrays, branch: str) -> int:
    """The evaluation at which a branch by itself has its best validation accuracy; the earliest wins a tie."""
    right = trajectory[f"validation.log_probs.{branch}"].argmax(axis=2) == predictions["validation.label"]
    accuracy = right.mean(axis=1)
    competes = trajectory["competes"]
    return int(np.argmax(np.where(competes, accuracy, -1.0) if competes.any() else accuracy))


def branches_of(predictions: Arrays) -> list[str]:
    """The prediction branches that a cell stored, in alphabetical order."""
    prefix = "test.log_probs."
    return sorted(key.removeprefix(prefix) for key in predictions if key.startswith(prefix))


def reported_branch(predictions: Arrays) -> str:
    return str(np.asarray(predictions["branch"]))


def ood_score(
    predictions: Arrays, branch: str, log_probabilities: npt.ArrayLike | None = None, split: str = "open_test"
) -> npt.NDArray:
    """The branch's own unseen-class score on a set, else 1 - max probability (of the given ones)."""
    own = f"{split}.ood_score.{branch}"
    if own in predictions:
        return predictions[own]
    stored = predictions[f"{split}.log_probs.{branch}"] if log_probabilities is None else log_probabilities
    return 1.0 - probabilities_of(stored).astype(np.float64).max(axis=1)


def acceptance(predictions: Arrays, share: float = ACCEPTED_SHARE) -> dict[str, float | str]:
    """The threshold on the reported branch's unseen-class score that accepts `share` of the seen validation records."""
    branch = reported_branch(predictions)
    classes = predictions[f"validation.log_probs.{branch}"].shape[1]
    seen = ood_score(predictions, branch, split="validation")[predictions["validation.label"] < classes]
    return {
        "accept_share": share,
        "accept_threshold": acceptance_threshold(seen, share),
        "unseen_score": score_type(predictions, branch),
    }


def score_type(predictions: Arrays, branch: str) -> str:
    """Where the branch's unseen-class score comes from."""
    return OWN_SCORE if f"validation.ood_score.{branch}" in predictions else CONFIDENCE_SCORE


def final_metrics(predictions: Arrays, branch: str | None = None, temperature: float = 1.0) -> dict[str, float]:
    """All metrics of one branch (default: the reported one) on test and open test, after dividing by a temperature.

    A metric that is not defined for these records is absent. A temperature other than 1 rescales the stored
    log-probabilities; a method's own unseen-class score is left as it is.
    """
    name = reported_branch(predictions) if branch is None else branch
    test, open_test = (
        scaled_log_probabilities(predictions[f"{split}.log_probs.{name}"], temperature)
        for split in ("test", "open_test")
    )
    score = ood_score(predictions, name, open_test)
    return (
        closed_set_metrics(test, predictions["test.label"])
        | open_set_metrics(score, predictions["open_test.label"] >= test.shape[1])
        | refusal_metrics(answered_right(predictions, name), score)
    )


def answered_right(predictions: Arrays, branch: str) -> npt.NDArray[np.bool_]:
    """Which records of the open test set the branch names correctly; for an unseen class no answer is right."""
    return predictions[f"open_test.log_probs.{branch}"].argmax(axis=1) == predictions["open_test.label"]
