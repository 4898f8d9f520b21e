"""What every method owes the training loop, under both protocols."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

from safeecgmatch.engine.loop import Training
from safeecgmatch.methods.base import Method
from safeecgmatch.protocols import known_methods
from tests.methods.toy import CLASSES, assert_same, bits, run, run_to, toy_training

CELLS = [(name, protocol) for name in known_methods() for protocol in ("paper", "release")]
STOP = 10  # inside every phase border that is at an evaluation
EVERY_CELL = pytest.mark.parametrize(("name", "protocol"), CELLS)


def new(name: str, protocol: str) -> Training:
    return toy_training(name, protocol, lambda_sum=1.0 if name == "safeecgmatch" else None)


@EVERY_CELL
def test_it_learns(name, protocol):
    """Noisy waves of three frequencies; chance is 1/3."""
    training = run(toy_training(name, protocol, iterations=60, evaluate_every=10, width=4, learning_rate=0.02))
    assert max(row["val_accuracy"] for row in training.history) > 0.6


@EVERY_CELL
def test_stopped_and_resumed_through_a_file_it_ends_with_the_same_bits(name, protocol):
    whole = new(name, protocol)
    run_to(whole, STOP)
    file = io.BytesIO()
    torch.save(whole.state(), file)
    file.seek(0)
    resumed = new(name, protocol)
    run_to(resumed, 1)  # what a resumed run did before is overwritten
    resumed.load(torch.load(file, weights_only=True))
    for training in (whole, resumed):
        run_to(training, training.setting.iterations)
    assert_same(whole.state(), resumed.state())


@EVERY_CELL
def test_hidden_labels_change_nothing_that_it_learns(name, protocol):
    """The monitor alone may read them: a run with other hidden labels ends with the same weights and memory."""
    plain, shuffled = new(name, protocol), new(name, protocol)
    shuffled.pool.labels.copy_(CLASSES - shuffled.pool.labels)
    assert shuffled.method.data.pool.labels is None
    for training in (plain, shuffled):
        run(training)
    assert bits(plain.method.state_dict()) == bits(shuffled.method.state_dict())
    assert_same(plain.method.memory(), shuffled.method.memory())


@EVERY_CELL
def test_teachers_and_memories_carry_no_gradient(name, protocol):
    training = new(name, protocol)
    run_to(training, 20)
    trained = {id(parameter) for parameter in training.method.parameters()}
    held = [value for value in vars(training.method).values() if hasattr(value, "network")]
    for teacher in held:
        assert isinstance(teacher.network, nn.Module) and not teacher.network.training
        for parameter in teacher.network.parameters():
            assert id(parameter) not in trained and parameter.grad is None and not parameter.requires_grad

    def check(content):
        if isinstance(content, torch.Tensor):
            assert not content.requires_grad
        elif isinstance(content, dict):
            [check(value) for value in content.values()]
        elif isinstance(content, list | tuple):
            [check(value) for value in content]

    check(training.method.memory())


def test_a_class_without_losses_cannot_be_made():
    class Incomplete(Method):
        def outputs(self, x):
            return {}

        def predict(self, outputs):
            return {}

    with pytest.raises(TypeError, match="losses"):
        Incomplete(None)
