"""What every method owes the training loop, under both protocols."""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np
import pytest
import torch

from safeecgmatch.engine.contract import Outputs, Prediction
from safeecgmatch.engine.loop import Training
from safeecgmatch.engine.method import Method
from safeecgmatch.engine.models import parameter_count
from safeecgmatch.methods.parts.teacher import Teacher
from safeecgmatch.protocols import known_methods
from safeecgmatch.reporting.published import benchmark_methods
from tests.methods.harness import CLASSES, assert_same, bits, learn, run, run_to, toy_training

PROTOCOLS = ("paper", "release")
CELLS = [(name, protocol) for name in known_methods() for protocol in PROTOCOLS]
STOP = 18  # between two evaluations, in the last phase of every method
# The scope lets the tests of a cell follow each other, so that they share its run also where workers share the tests.
EVERY_CELL = pytest.mark.parametrize(("name", "protocol"), CELLS, scope="module")


def new(name: str, protocol: str) -> Training:
    return toy_training(name, protocol, lambda_sum=1.0 if name == "safeecgmatch" else None)


@functools.lru_cache(maxsize=1)
def whole_run(name: str, protocol: str) -> tuple[Training, bytes]:
    """A cell trained to the end, and its checkpoint on the way as the bytes of a file."""
    training, file = new(name, protocol), io.BytesIO()
    run_to(training, STOP)
    torch.save(training.state(), file)
    run_to(training, training.setting.iterations)
    return training, file.getvalue()


@EVERY_CELL
def test_it_learns(name: str, protocol: str) -> None:
    """Noisy waves of three frequencies; chance is 1/3."""
    training = run(toy_training(name, protocol, iterations=60, epoch=10, width=4, learning_rate=0.02))
    assert max(row["val_accuracy"] for row in training.history) > 0.6


@pytest.mark.slow
@EVERY_CELL
def test_it_learns_the_phantom(name: str, protocol: str) -> None:
    metrics, _ = learn(name, protocol)
    assert metrics["balanced_accuracy"] >= 0.6


@EVERY_CELL
def test_stopped_and_resumed_through_a_file_it_ends_with_the_same_bits(name: str, protocol: str) -> None:
    whole, checkpoint = whole_run(name, protocol)
    resumed = new(name, protocol)
    run_to(resumed, 1)  # what a resumed run did before is overwritten
    saved = torch.load(io.BytesIO(checkpoint), weights_only=True)
    resumed.load(saved)
    assert_same(dict(resumed.state()), saved)
    run_to(resumed, resumed.setting.iterations)
    assert_same(whole.state(), resumed.state())


@EVERY_CELL
def test_neither_hidden_labels_nor_the_open_test_set_change_what_it_learns(name: str, protocol: str) -> None:
    """The monitor alone may read them: a run with others ends with the same weights and memory."""
    plain, other = whole_run(name, protocol)[0], new(name, protocol)
    assert other.pool.labels is not None and other.method.data.pool.labels is None
    other.pool.labels.copy_(CLASSES - other.pool.labels)
    other.open_test.source.signals.zero_()
    run_to(other, other.setting.iterations)
    assert bits(plain.method.state_dict()) == bits(other.method.state_dict())
    assert_same(plain.method.memory(), other.method.memory())
    assert [row["val_accuracy"] for row in plain.history] == [row["val_accuracy"] for row in other.history]


@EVERY_CELL
def test_the_trajectory_says_at_the_chosen_evaluation_what_the_chosen_weights_say(name: str, protocol: str) -> None:
    """For every branch and both sets, to the last bit, and in a network that knows these weights alone."""
    training, method = whole_run(name, protocol)[0], new(name, protocol).method
    arrays, chosen = training.trajectory.arrays(), training.chosen()
    assert arrays["iteration"].tolist() == [4, 8, 12, 16, 20, 24]
    assert arrays["competes"].tolist() == [bool(row["competes"]) for row in training.history]
    index = arrays["iteration"].tolist().index(chosen.iteration)
    method.load_state_dict(chosen.weights)
    assert arrays["branch"][index] == method.reported_branch()
    for part in ("validation", "open_test"):
        signals = getattr(training, part)
        for branch, prediction in method.predict(method.outputs_on(signals)).items():
            stored = arrays[f"{part}.log_probs.{branch}"]
            assert stored.dtype == np.float32 and stored.shape[:2] == (6, len(signals))
            assert stored[index].tobytes() == prediction.log_probs.detach().numpy().tobytes()
            if prediction.ood_score is not None:
                assert arrays[f"{part}.ood_score.{branch}"][index].tobytes() == prediction.ood_score.numpy().tobytes()
    temperatures = {key: value for key, value in method.monitors().items() if key.startswith("temperature.")}
    assert {key: arrays[key][index] for key in temperatures} == temperatures


@EVERY_CELL
def test_teachers_and_memories_carry_no_gradient(name: str, protocol: str) -> None:
    method = whole_run(name, protocol)[0].method
    trained = {id(parameter) for parameter in method.parameters()}
    for teacher in (value for value in vars(method).values() if isinstance(value, Teacher)):
        assert not teacher.network.training
        for parameter in teacher.network.parameters():
            assert id(parameter) not in trained and parameter.grad is None and not parameter.requires_grad

    def check(content: Any) -> None:
        if isinstance(content, torch.Tensor):
            assert not content.requires_grad
        elif isinstance(content, dict | list | tuple):
            for value in content.values() if isinstance(content, dict) else content:
                check(value)

    check(method.memory())


def test_the_methods_with_a_teacher_hold_it_where_the_contract_looks() -> None:
    paper = [cell for cell in CELLS if cell[0] in benchmark_methods()]
    holders = {cell for cell in paper if any(isinstance(value, Teacher) for value in vars(new(*cell).method).values())}
    assert holders == {(name, protocol) for name in ("ecgmatch", "safestudent") for protocol in PROTOCOLS}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("supervised", 3_850_371),
        ("fixmatch", 3_850_371),
        ("openmatch", 3_853_443),
        ("calimatch", 3_853_445),
        ("safeecgmatch", 7_706_890),
    ],
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_size_at_paper_width(name: str, parameters: int, protocol: str) -> None:
    assert parameter_count(toy_training(name, protocol, width=64, leads=12).method) == parameters


def test_a_class_without_losses_cannot_be_made() -> None:
    class Incomplete(Method):
        def outputs(self, x: torch.Tensor) -> Outputs:
            return {}

        def predict(self, outputs: Outputs) -> dict[str, Prediction]:
            return {}

    with pytest.raises(TypeError, match="losses"):
        Incomplete(None)  # type: ignore
