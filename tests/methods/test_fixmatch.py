"""FixMatch and Supervised, by hand and in whole iterations by the specification."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from safeecgmatch.engine.loop import Training
from safeecgmatch.methods.fixmatch.method import FixMatchHyper, step
from tests.methods.harness import switches_of
from tests.methods.oracle import (
    Drawn,
    Expected,
    Oracle,
    Tagged,
    cross_entropy,
    first_drawn,
    follow,
    strong,
    taken,
    weak,
)


def logits_of(confidence: list[float]) -> torch.Tensor:
    """Class 1 of two has exactly these probabilities (float64)."""
    p = torch.tensor(confidence, dtype=torch.float64)
    return torch.stack([torch.zeros_like(p), (p / (1 - p)).log()], dim=1)


def test_pseudo_label_loss_over_batch_or_selected() -> None:
    weakly, strongly = logits_of([0.99, 0.6, 0.01]), logits_of([0.7, 0.7, 0.7])
    y, hyper = torch.tensor([1, 0, 1]), FixMatchHyper(threshold=0.95, lambda_u=1.0)
    for protocol, count in (("paper", 3), ("release", 2)):
        switches = switches_of("fixmatch", protocol)
        result = step(strongly, y, weakly, strongly, hyper, switches, 0.5)
        assert result.accepted.tolist() == [True, False, True] and result.pseudo.tolist() == [1, 1, 0]
        pseudo, supervised = -(math.log(0.7) + math.log(0.3)) / count, F.cross_entropy(strongly, y).item()
        assert result.terms["pseudo"].item() == pytest.approx(pseudo)
        assert result.terms["supervised"].item() == pytest.approx(supervised)
        assert result.total.item() == pytest.approx(supervised + 0.5 * pseudo)
        nobody = step(strongly, y, strongly, strongly, hyper, switches, 1.0)
        assert nobody.terms["pseudo"].item() == 0.0
        too_early = step(strongly, y, weakly, strongly, hyper, switches, 0.0)
        assert not too_early.accepted.any() and too_early.total == too_early.terms["supervised"]


START, EVERY = 4, 3
RAMP = 6  # the warm-up under `release`


class FixMatchOracle(Oracle):
    def __init__(
        self, training: Training, protocol: str, threshold: float, start: int = START, ramp: int = RAMP
    ) -> None:
        super().__init__(training)
        self.paper, self.threshold, self.start, self.ramp = protocol == "paper", threshold, start, ramp

    def iterate(self, n: int, drawn: Drawn) -> Expected:
        size = len(drawn.x_u)
        z = self.network(torch.cat([weak(drawn.x_l), weak(drawn.x_u), strong(drawn.x_u)]))
        z_l, z_w, z_s = z[:size], z[size : 2 * size].detach(), z[2 * size :]
        confidence, pseudo = z_w.softmax(dim=1).max(dim=1)
        supervised = cross_entropy(z_l, drawn.y_l).mean()
        if self.paper:
            accepted, weight = (confidence >= self.threshold) & (n >= self.start), 1.0
            unsupervised = (cross_entropy(z_s, pseudo) * accepted).sum() / size
        else:
            accepted, weight = confidence > self.threshold, math.exp(-5 * (1 - min(n / self.ramp, 1)) ** 2)
            unsupervised = cross_entropy(z_s, pseudo)[accepted].sum() / max(int(accepted.sum()), 1)
        total = supervised + weight * unsupervised
        self.descend(total)
        return Expected(total, {"supervised": supervised, "pseudo": unsupervised}, accepted, pseudo)


class SupervisedOracle(Oracle):
    def iterate(self, n: int, drawn: Drawn) -> Expected:
        supervised = cross_entropy(self.network(weak(drawn.x_l)), drawn.y_l).mean()
        self.descend(supervised)
        return Expected(supervised, {"supervised": supervised})


@pytest.mark.parametrize("protocol", ["paper", "release"])
def test_fixmatch(tagged: Tagged, protocol: str) -> None:
    warm_up = START if protocol == "paper" else RAMP
    training = tagged("fixmatch", protocol, 12, EVERY, warm_up=warm_up, learning_rate=0.05, hyper={"threshold": 0.6})
    accepted = taken(follow(training, FixMatchOracle(training, protocol, 0.6)))
    assert any(accepted[:START]) == (protocol == "release") and 0 < sum(accepted[START:]) < 4 * len(accepted[START:])


@pytest.mark.parametrize("protocol", ["paper", "release"])
def test_supervised(tagged: Tagged, protocol: str) -> None:
    training = tagged("supervised", protocol, 9, EVERY, learning_rate=0.05)
    follow(training, SupervisedOracle(training))
    assert "mask_rate" not in training.history[-1]


@pytest.mark.parametrize("protocol", ["paper", "release"])
def test_a_record_on_the_threshold(tagged: Tagged, protocol: str) -> None:
    warm_up = {"paper": 0, "release": 1}[protocol]
    rehearsal = tagged("fixmatch", protocol, 1, 1, warm_up=warm_up)
    drawn = first_drawn(rehearsal)
    z = rehearsal.method.network(torch.cat([weak(drawn.x_l), weak(drawn.x_u), strong(drawn.x_u)]))
    threshold = z[len(drawn.x_l)].softmax(dim=0).max().item()
    training = tagged("fixmatch", protocol, 2, 1, warm_up=warm_up, hyper={"threshold": threshold})
    (first, _) = follow(training, FixMatchOracle(training, protocol, threshold, start=0, ramp=1))
    assert bool(first.accepted[0]) == (protocol == "paper")
