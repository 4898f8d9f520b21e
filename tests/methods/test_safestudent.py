"""SafeStudent: energy discrepancy, who is seen and unseen, phases, rounds, and what competes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from safeecgmatch.engine.contract import Evaluation, Prediction
from safeecgmatch.engine.loop import Training
from safeecgmatch.methods.safestudent.energy import energy_discrepancy
from safeecgmatch.methods.safestudent.method import SafeStudent
from safeecgmatch.methods.safestudent.step import Step, step
from tests.methods.harness import hyper_of, run_to, switches_of, toy_training
from tests.vectors import double, load_vector

VECTOR = load_vector("safestudent_ed")
LABELLED = torch.tensor([[1.0, 0, 0], [0, 1.0, 0]], dtype=torch.float64)
LABELS = torch.tensor([0, 2])


def random_logits(rows: int, seed: int, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def phase_two(protocol: str, t: Tensor, s: Tensor, ood_ratio: float = 0.6) -> Step:
    return step(LABELLED, LABELS, t, s, ood_ratio, hyper_of("safestudent"), switches_of("safestudent", protocol))


@pytest.mark.parametrize("case", VECTOR["values"])
def test_energy_discrepancy_vector(case: dict) -> None:
    ed = energy_discrepancy(double(VECTOR["logits"]), case["T"])
    torch.testing.assert_close(ed, double(case["ed"]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", VECTOR["masks_T1"])
def test_absolute_masks_vector(case: dict) -> None:
    logits = double(VECTOR["logits"])
    result = phase_two("release", logits, logits, case["tau"])
    assert result.seen.tolist() == case["seen"]
    assert result.unseen.tolist() == case["unseen"]


def test_release_at_threshold_0_3_calls_no_record_unseen_and_paper_some() -> None:
    """Three classes: ED = -ln(1 - p_max) >= ln 1.5 = 0.405 while `unseen` would ask for ED < 0.2."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.logspace(-3, 1.2, 4000, dtype=torch.float64)[:, None]
    t = spread * torch.randn(4000, 3, generator=generator, dtype=torch.float64).clamp(-0.6, 2.0)
    t = torch.cat([t, torch.zeros(1, 3, dtype=torch.float64)])
    exact = -torch.log1p(-t.softmax(1).amax(1))
    assert exact.min().item() == pytest.approx(math.log(1.5), abs=1e-12)
    # The 1e-5 inside the logarithm takes a little, but could reach 0.2 only if all logits were below -10.7.
    assert energy_discrepancy(t.clamp(min=-5.0), 1.0).min().item() >= math.log(1.5) - 1e-3
    release = phase_two("release", t, t, 0.3)
    assert not release.unseen.any() and release.seen.all()
    assert release.terms["uniform"].item() == 0.0
    paper = phase_two("paper", t, t, 0.3)
    assert paper.unseen.any() and paper.terms["uniform"].item() > 0.0


def test_a_released_run_never_meets_an_unseen_record_and_a_paper_run_does() -> None:
    uniform = {}
    for protocol in ("paper", "release"):
        training = toy_training("safestudent", protocol, iterations=12, ood_level=30)
        run_to(training, 12)
        uniform[protocol] = [row["loss.uniform"] for row in training.history if "loss.uniform" in row]
    assert uniform["release"] and all(value == 0.0 for value in uniform["release"])
    assert uniform["paper"] and all(value > 0.0 for value in uniform["paper"])


def test_percentiles_give_13_seen_4_unseen_15_ignored_whatever_the_ood_ratio() -> None:
    t, s = random_logits(32, 1), random_logits(32, 2)
    for ratio in (0.3, 0.6):
        result = phase_two("paper", t, s, ratio)
        assert int(result.seen.sum()) == 13 and int(result.unseen.sum()) == 4
        assert not (result.seen & result.unseen).any()
        assert result.ed[result.seen].min() > result.ed[~result.seen].max()
        assert result.ed[result.unseen].max() < result.ed[~result.unseen].min()


def test_empty_sets_cost_nothing_and_leave_finite_gradients() -> None:
    s = random_logits(4, 7).requires_grad_()
    nobody_seen = phase_two("release", torch.zeros(4, 3, dtype=torch.float64), s, 0.6)
    assert not nobody_seen.seen.any()
    assert nobody_seen.terms["hard"].item() == nobody_seen.terms["soft"].item() == 0.0
    nobody_unseen = phase_two("release", 9 * torch.eye(4, 3, dtype=torch.float64) + 3, s, 0.3)
    assert not nobody_unseen.unseen.any() and nobody_unseen.terms["uniform"].item() == 0.0
    (nobody_seen.total + nobody_unseen.total).backward()
    assert bool(torch.isfinite(s.grad).all())


def student(training: Training) -> SafeStudent:
    assert isinstance(training.method, SafeStudent)
    return training.method


@pytest.mark.parametrize(
    ("iterations", "every", "phase_one", "round_ends"),
    [
        (50_000, 1_000, 10_000, {23_000, 36_000}),
        (2_000, 200, 400, {800, 1_400}),
        (1500, 100, 300, {700, 1_100}),  # the last evaluation after half an interval
        (150, 50, 50, {100}),
        (100, 50, 50, set()),
        (50, 50, 50, set()),
    ],
)
def test_phases_and_rounds(iterations: int, every: int, phase_one: int, round_ends: set[int]) -> None:
    method = student(toy_training("safestudent", "paper", iterations, every))
    assert method.phase_one == phase_one
    assert method.round_ends == round_ends
    assert not method.competes(phase_one) and method.competes(phase_one + every)


def evaluate_as(training: Training, iteration: int, accuracy: float) -> None:
    student(training).after_evaluation(Evaluation(iteration, {}, torch.empty(0), accuracy))


def shift_weights(training: Training, amount: float) -> None:
    with torch.no_grad():
        student(training).network.fc.bias += amount


def bias(network: torch.nn.Module) -> float:
    return round(float(network.state_dict()["fc.bias"][0]), 4)


def test_paper_rounds_restart_the_optimiser_and_promote_the_best_student() -> None:
    training = toy_training("safestudent", "paper", iterations=1_500, epoch=100)  # phase 1: 3; ends at 7, 11
    method = student(training)
    assert method.phase_one == 300 and method.round_ends == {700, 1_100}
    training.iterate()
    method.network.fc.bias.data.zero_()
    for iteration, accuracy in ((100, 0.5), (200, 0.8)):
        shift_weights(training, 1.0)
        evaluate_as(training, iteration, accuracy)
    shift_weights(training, 1.0)
    evaluate_as(training, 300, 0.8)  # a tie: the earliest wins
    assert bias(method.network) == bias(method.teacher.network) == 2.0
    assert len(training.optimizer.state) == 0
    accuracies = {400: 0.6, 500: 0.7, 600: 0.7, 700: 0.3}
    for iteration, accuracy in accuracies.items():
        shift_weights(training, 1.0)
        if iteration == 700:
            training.n = method.phase_one
            training.iterate()
            method.network.fc.bias.data.fill_(6.0)
            assert len(training.optimizer.state) > 0
        assert bias(method.teacher.network) == 2.0
        evaluate_as(training, iteration, accuracy)
    assert bias(method.teacher.network) == 4.0  # the student of evaluation 500
    assert bias(method.network) == 6.0  # goes on from its own weights
    assert len(training.optimizer.state) == 0
    shift_weights(training, 1.0)
    evaluate_as(training, 1_100, 0.65)  # nothing better in round 2: the best of all rounds stays
    assert bias(method.teacher.network) == 4.0


def force_accuracies(training: Training, accuracies: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the validation labels agree with the predictions as often as each accuracy says."""
    wanted = (accuracy for accuracy in accuracies for _ in ("validation", "open_test"))
    labels = training.validation.labels
    assert labels is not None

    def predict(outputs: dict[str, Tensor]) -> dict:
        right = torch.arange(len(labels)) < round(next(wanted) * len(labels))
        predicted = torch.where(right, labels, (labels + 1) % 3)
        return {"main": Prediction(torch.nn.functional.one_hot(predicted, 3).float())}

    monkeypatch.setattr(training.method, "predict", predict)


@pytest.mark.parametrize(
    ("protocol", "accuracies", "best", "early"),
    [
        ("paper", [0.9, 0.5, 0.7, 0.7, 0.6], 12, 4),
        ("release", [0.7, 0.5, 0.7, 0.8, 0.8], 16, 4),
        ("release", [0.9, 0.5, 0.7, 0.9, 0.6], None, 4),
    ],
)
def test_selection(
    protocol: str, accuracies: list[float], best: int | None, early: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = toy_training("safestudent", protocol, iterations=20, epoch=4)
    force_accuracies(training, accuracies, monkeypatch)
    run_to(training, 20)
    assert training.early is not None and training.early.iteration == early
    assert (training.best.iteration if training.best else None) == best
    assert training.chosen().iteration == (early if best is None else best)
    assert [row["competes"] for row in training.history] == [0, 1, 1, 1, 1]
