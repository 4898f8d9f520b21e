"""ECGMatch, the faithful variant."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from safeecgmatch.methods.ecgmatch.losses import relationship_cosine
from safeecgmatch.methods.ecgmatch.step import neighbour_targets, step
from safeecgmatch.methods.parts.teacher import Teacher
from tests.methods.harness import run_to, switches_of, toy_training
from tests.vectors import load_vector


def test_step_reproduces_the_original() -> None:
    vector = load_vector("ecgmatch_original_step_losses")

    def close(actual: torch.Tensor, key: str) -> None:
        expected = torch.tensor(vector[key])
        torch.testing.assert_close(actual.detach(), expected, atol=vector["atol"], rtol=vector["rtol"])

    features, scores = torch.tensor(vector["feature_bank"]), torch.tensor(vector["score_bank"])
    targets = neighbour_targets(torch.tensor(vector["student_query_features"]), features, scores, 3)
    assert targets.nearest.tolist() == vector["neighbour_idx"]
    close(targets.scores, "pseudo_target")
    close(targets.weights, "agreement_weight")
    logits = torch.tensor(vector["logits"], requires_grad=True)
    z_l, z_w, z_s = logits.split([2, 3, 3])
    wanted, switches = torch.tensor(vector["relationship_target"]), switches_of("ecgmatch", "paper")
    result = step(z_l, torch.tensor(vector["labels"]), z_w, z_s, targets, wanted, switches)
    close(result.terms["supervised"], "sup_loss")
    close(result.terms["neighbour"], "weighted_unsup")
    close(result.terms["relationship"], "relationship_loss")
    close(result.total, "total")
    result.total.backward()
    assert logits.grad is not None
    close(logits.grad, "grad_logits")


def test_teacher_follows_with_the_students_batch_norm() -> None:
    vector = load_vector("ecgmatch_original_ema_lr")["ema"]

    def network(state: dict[str, Any]) -> torch.nn.Module:
        module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        module.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
        return module

    teacher = Teacher(network(vector["teacher_before"]))
    teacher.ema_(network(vector["student"]), vector["decay"], "copy")
    for name, value in teacher.state().items():
        torch.testing.assert_close(value, torch.tensor(vector["teacher_after"][name]))


def test_relationship_target_of_single_labels_is_the_identity() -> None:
    method: Any = toy_training("ecgmatch", "paper").method
    wanted = method.relationship_target(relationship_cosine)
    torch.testing.assert_close(wanted, torch.eye(3), atol=1e-6, rtol=0)
    assert relationship_cosine(torch.tensor([[1.0, 1.0], [1.0, 0.0]]))[0, 1] > 0.5  # labels that occur together


@pytest.mark.parametrize(
    ("iterations", "every", "expected"),
    [(50_000, 1000, 5000), (150, 50, 50), (2000, 200, 200), (2100, 150, 300), (20, 20, 20)],
)
def test_pretraining_ends_with_an_evaluation(iterations: int, every: int, expected: int) -> None:
    method: Any = toy_training("ecgmatch", "paper", iterations=iterations, epoch=every).method
    assert method.pretraining == expected
    assert not method.competes(expected) and method.competes(expected + every)


@pytest.mark.parametrize("buffers", ["frozen", "copy", "ema"])
def test_teacher_batch_norm_follows_the_switch(buffers: str) -> None:
    training = toy_training("ecgmatch", "paper", switches={"teacher_bn": buffers})
    run_to(training, 4)
    method: Any = training.method
    before = method.teacher.state()["stem_bn.running_mean"]
    run_to(training, 6)
    teacher, student = method.teacher.state()["stem_bn.running_mean"], method.network.stem_bn.running_mean
    assert torch.equal(teacher, before) == (buffers == "frozen")
    assert torch.equal(teacher, student) == (buffers == "copy")


@pytest.mark.parametrize("option", [{"views": "ecg_augment"}, {"relationship": "euclidean"}])
def test_options_run(option: dict[str, Any]) -> None:
    training = toy_training("ecgmatch", "paper", switches=option)
    run_to(training, 8)
    first, second = training.history
    assert "teacher_accuracy" not in first and 0 <= second["teacher_accuracy"] <= 1
    assert second["pretraining_accuracy"] == first["val_accuracy"]
