"""Whole iterations of Supervised and FixMatch, by the specification."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from safeecgmatch.engine.loop import Row, Training
from tests.methods.oracle import Drawn, Expected, Oracle, Probe, cross_entropy, follow, strong, weak

START, EVERY = 4, 3
RAMP = 6  # the warm-up under `release`


class FixMatchOracle(Oracle):
    network: Probe

    def __init__(
        self, training: Training, protocol: str, threshold: float, start: int = START, ramp: int = RAMP
    ) -> None:
        super().__init__(training)
        self.paper, self.threshold, self.start, self.ramp = protocol == "paper", threshold, start, ramp
        self.network = self.adopt(training.method.network)
        self.start_adam()

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

    def evaluate(self, n: int) -> Row:
        return {"val_accuracy": self.accuracy(self.network)}


class SupervisedOracle(FixMatchOracle):
    def iterate(self, n: int, drawn: Drawn) -> Expected:
        supervised = cross_entropy(self.network(weak(drawn.x_l)), drawn.y_l).mean()
        self.descend(supervised)
        return Expected(supervised, {"supervised": supervised})


@pytest.mark.parametrize("protocol", ["paper", "release"])
def test_fixmatch(tagged: Any, protocol: str) -> None:
    warm_up = START if protocol == "paper" else RAMP
    training = tagged("fixmatch", protocol, 12, EVERY, warm_up=warm_up, learning_rate=0.05, hyper={"threshold": 0.6})
    done = follow(training, FixMatchOracle(training, protocol, 0.6))
    taken = [int(one.accepted.sum()) for one in done]  # type: ignore[union-attr]
    assert (sum(taken[:START]) > 0) == (protocol == "release") and 0 < sum(taken[START:]) < 4 * len(taken[START:])


@pytest.mark.parametrize("protocol", ["paper", "release"])
def test_supervised(tagged: Any, protocol: str) -> None:
    training = tagged("supervised", protocol, 9, EVERY, learning_rate=0.05)
    follow(training, SupervisedOracle(training, protocol, 1.0))


@pytest.mark.parametrize("protocol", ["paper", "release"])
def test_a_record_on_the_threshold(tagged: Any, protocol: str) -> None:
    warm_up = {"paper": 0, "release": 1}[protocol]
    training = tagged("fixmatch", protocol, 1, 1, warm_up=warm_up)
    x_l, x_u = (batch := training.draw()[0]).x_l, batch.x_u
    z = training.method.network(torch.cat([weak(x_l), weak(x_u), strong(x_u)]))[len(x_l) :][: len(x_u)]
    threshold = z.softmax(dim=1).max(dim=1).values[0].item()
    training = tagged("fixmatch", protocol, 2, 1, warm_up=warm_up, hyper={"threshold": threshold})
    (first, _) = follow(training, FixMatchOracle(training, protocol, threshold, start=0, ramp=1))
    assert bool(first.accepted[0]) == (protocol == "paper")  # type: ignore[index]
