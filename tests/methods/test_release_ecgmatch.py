"""ECGMatch as published."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from safeecgmatch.methods.ecgmatch.release import neighbour_targets, step
from tests.methods.harness import switches_of


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
