"""ECGMatch as published."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from safeecgmatch.methods.ecgmatch.release import neighbour_targets, step
from tests.methods.toy import all_losses, run_to, switches_of, toy_training


def test_targets_leave_out_the_own_row() -> None:
    features = F.normalize(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, 0.3], [0.0, 1.0]]), dim=1)
    scores = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
    targets = neighbour_targets(features[:1], torch.tensor([0]), features, scores, 2)
    assert targets.nearest.tolist() == [[1, 2]]
    torch.testing.assert_close(targets.probabilities, torch.tensor([[0.0, 0.75, 0.25]]))
    # std of (0, 0), (1, 0.5), (0, 0.5) with n - 1, averaged over the classes
    disagreement = 2 * (0.5**2 / 2) ** 0.5 / 3
    torch.testing.assert_close(targets.agreement, torch.tensor([0.75 * (1 - disagreement)]))


def test_step_on_plain_logits() -> None:
    generator = torch.Generator().manual_seed(0)
    z_l, z_s = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    scores = torch.rand(9, 3, generator=generator, dtype=torch.float64).softmax(dim=1)
    scores[0] = torch.tensor([0.0, 0.0, 1.0])
    features = F.normalize(torch.randn(9, 4, generator=generator, dtype=torch.float64), dim=1)
    targets = neighbour_targets(features[:5], torch.arange(5), features, scores, 3)
    y = torch.tensor([0, 1, 2, 0, 1])
    wanted = torch.eye(3)
    plain, weighting = (switches_of("ecgmatch", "release", agreement_weight=value) for value in (False, True))
    result = step(z_l, y, z_s, targets, wanted, 1.0, plain).terms
    kl = F.kl_div(z_s.log_softmax(dim=1), targets.probabilities, reduction="batchmean")
    torch.testing.assert_close(result["neighbour"], kl)
    weighted = step(z_l, y, z_s, targets, wanted, 1.0, weighting).terms["neighbour"]
    rows = F.kl_div(z_s.log_softmax(dim=1), targets.probabilities, reduction="none").sum(dim=1)
    torch.testing.assert_close(weighted, (rows * targets.agreement).mean())
    torch.testing.assert_close(result["supervised"], F.cross_entropy(z_l, y))


def test_ramp_weights_both_unlabelled_terms() -> None:
    training = toy_training("ecgmatch", "release", iterations=1000)  # the ramp is 10 iterations long
    training.method.before_step(0)
    for n, ramp in [(0, 0.006737947), (5, 0.2865047968), (10, 1.0)]:
        (losses,) = all_losses(training, n)
        terms = losses.terms
        expected = terms["supervised"] + ramp * (terms["neighbour"] + 0.5 * terms["relationship"])
        torch.testing.assert_close(losses.total, expected)


def test_teacher_batch_norm_never_moves() -> None:
    training = toy_training("ecgmatch", "release")
    run_to(training, 8)
    method: Any = training.method
    state = method.teacher.state()
    assert (state["stem_bn.running_mean"] == 0).all() and (state["stem_bn.running_var"] == 1).all()
    assert (method.network.stem_bn.running_mean != 0).any()
    assert 0 <= training.history[-1]["teacher_accuracy"] <= 1


def test_student_statistics_see_labelled_then_strong_views() -> None:
    training = toy_training("ecgmatch", "release")
    training.method.before_step(0)
    all_losses(training, 0)
    assert int(training.method.network.stem_bn.num_batches_tracked) == 2  # type: ignore[union-attr, arg-type]


def test_every_evaluation_competes() -> None:
    assert toy_training("ecgmatch", "release").method.competes(4)
