"""What a cell keeps of every evaluation; that it says what the network said is in tests/methods/test_contract.py."""

from __future__ import annotations

import numpy as np
import torch

from safeecgmatch.engine.contract import Prediction
from safeecgmatch.engine.trajectory import Trajectory
from safeecgmatch.predictions import final_metrics, own_best, predictions_at


def probabilities(rows: list[list[float]]) -> Prediction:
    return Prediction(torch.tensor(rows).log())


def made() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Two branches over three evaluations, the first of which does not compete; records of two seen classes."""
    right, wrong = [[0.9, 0.1], [0.2, 0.8]], [[0.1, 0.9], [0.8, 0.2]]
    half = [[0.9, 0.1], [0.8, 0.2]]
    trajectory = Trajectory()
    for n, competes, first, second in ((10, False, right, wrong), (20, True, half, right), (30, True, half, right)):
        validation = {"a": probabilities(first), "b": probabilities(second)}
        open_test = {"a": probabilities([*first, [0.5, 0.5]]), "b": probabilities([[0.5, 0.5], *second])}
        sets = {"validation": validation, "open_test": open_test}
        trajectory.add(n, "a", competes, sets, {"temperature.class.a": n / 10})
    labels = {"validation.label": np.array([0, 1]), "test.label": np.array([0, 1])}
    labels["open_test.label"] = np.array([0, 1, 2])
    records = {"validation.record": np.array(["v", "w"]), "test.record": np.array(["s", "t"])}
    records["open_test.record"] = np.array(["s", "t", "u"])
    predictions = {"branch": np.array("a"), **labels, **records, "test.log_probs.a": np.log(np.array(half))}
    return predictions, trajectory.arrays()


def test_each_branch_has_a_best_evaluation_of_its_own() -> None:
    """Phases that do not compete cannot give it, and the earliest wins a tie."""
    predictions, trajectory = made()
    assert (own_best(predictions, trajectory, "a"), own_best(predictions, trajectory, "b")) == (1, 1)
    trajectory["competes"][:] = False
    assert (own_best(predictions, trajectory, "a"), own_best(predictions, trajectory, "b")) == (0, 1)


def test_an_evaluation_reads_like_predictions() -> None:
    predictions, trajectory = made()
    then = predictions_at(predictions, trajectory, 0)
    assert str(then["branch"]) == "a" and then["temperature.class.a"] == 1.0
    assert then["test.log_probs.a"].tobytes() == then["open_test.log_probs.a"][:2].tobytes(), "test is its seen rows"
    assert final_metrics(then)["acc"] == 1.0
    assert final_metrics(predictions_at(predictions, trajectory, 2))["acc"] == 0.5
