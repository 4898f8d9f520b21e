"""What a cell keeps of every evaluation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from safeecgmatch.engine.contract import Prediction
from safeecgmatch.engine.trajectory import Trajectory
from safeecgmatch.predictions import final_metrics, own_best, predictions_at
from safeecgmatch.protocols import known_methods
from tests.methods.harness import assert_same, bits, run, run_to, toy_training


@pytest.mark.parametrize("name", known_methods())
def test_the_chosen_evaluation_says_what_the_chosen_weights_say(name: str) -> None:
    """For every branch and both sets, to the last bit: the weights of the best checkpoint predict it again."""
    training = run(toy_training(name, "paper", 12, 3, lambda_sum=1.0 if name == "safeecgmatch" else None))
    arrays, chosen = training.trajectory.arrays(), training.chosen()
    assert arrays["iteration"].tolist() == [3, 6, 9, 12]
    assert arrays["competes"].tolist() == [bool(row["competes"]) for row in training.history]
    index = arrays["iteration"].tolist().index(chosen.iteration)
    training.method.load_state_dict(chosen.weights)
    assert arrays["branch"][index] == training.method.reported_branch()
    for part in ("validation", "open_test"):
        signals = getattr(training, part)
        for branch, prediction in training.method.predict(training.method.outputs_on(signals)).items():
            stored = arrays[f"{part}.log_probs.{branch}"]
            assert stored.dtype == np.float32 and stored.shape[:2] == (4, len(signals))
            assert stored[index].tobytes() == prediction.log_probs.detach().numpy().tobytes()
            if prediction.ood_score is not None:
                assert arrays[f"{part}.ood_score.{branch}"][index].tobytes() == prediction.ood_score.numpy().tobytes()
    for key, value in training.method.monitors().items():
        if key.startswith("temperature."):
            assert arrays[key][index] == value


@pytest.mark.parametrize("name", ["safeecgmatch", "openmatch", "tstfc"])
def test_keeping_it_changes_no_training(name: str) -> None:
    """Nor does what the open test set holds."""
    kept = toy_training(name, "paper", 12, 3, lambda_sum=1.0)
    other = toy_training(name, "paper", 12, 3, lambda_sum=1.0)
    object.__setattr__(other.open_test.source, "signals", torch.zeros(20, 2, 64))
    assert bits(run(kept).method.state_dict()) == bits(run(other).method.state_dict())
    assert kept.history == other.history


def test_it_goes_on_from_a_checkpoint_between_two_evaluations() -> None:
    whole = run(toy_training("safeecgmatch", "paper", 12, 3, lambda_sum=1.0))
    begun = toy_training("safeecgmatch", "paper", 12, 3, lambda_sum=1.0)
    run_to(begun, 7)
    resumed = toy_training("safeecgmatch", "paper", 12, 3, lambda_sum=1.0)
    resumed.load(begun.state())
    run(resumed)
    assert_same(whole.trajectory.state(), resumed.trajectory.state())


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
