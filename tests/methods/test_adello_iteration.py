"""Whole iterations of Adello, by the specification."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from safeecgmatch.engine.loop import Row, Training
from tests.methods.oracle import BATCH, Drawn, Expected, Oracle, Probe, close, cross_entropy, follow, strong, weak

ITERATIONS, EVERY, WARM_UP = 25, 5, 3
RELEASE_START = 20  # the fifth epoch
DISTILL_START = 5  # 50,000 of 262,144
DECAY = 0.9996 ** (50_000 / ITERATIONS)


class AdelloOracle(Oracle):
    network: Probe

    def __init__(self, training: Training, protocol: str, threshold: float, warm_up: int = WARM_UP) -> None:
        super().__init__(training)
        self.paper, self.threshold = protocol == "paper", threshold
        self.start = warm_up if self.paper else RELEASE_START
        self.network = self.adopt(training.method.network)
        self.prior = torch.full((3,), 1 / 3)
        self.start_adam()

    def forward(self, drawn: Drawn) -> tuple[Tensor, Tensor, Tensor]:
        z_l, z_w, z_s = self.network(torch.cat([weak(drawn.x_l), weak(drawn.x_u), strong(drawn.x_u)])).split(BATCH)
        return z_l, z_w.detach(), z_s

    def iterate(self, n: int, drawn: Drawn) -> Expected:
        flat = self.prior ** (1 - 0.9 * (n / ITERATIONS) ** 2)
        flat = flat / flat.sum()
        labelled = torch.tensor([0.4, 0.3, 0.3])  # of ten records, a third of each class and one more of the first
        shift_l, shift = ((prior + 1e-9).log() - (flat + 1e-9).log() for prior in (labelled, self.prior))
        z_l, z_w, z_s = self.forward(drawn)
        p = z_w.softmax(dim=1)
        confidence, pseudo = p.max(dim=1)
        sure, nothing = confidence >= self.threshold, torch.zeros(())
        distilled = -(p * (z_s + shift).log_softmax(dim=1)).sum(dim=1)
        terms = {
            "supervised": cross_entropy(z_l + shift_l, drawn.y_l).mean(),
            "consistency": (cross_entropy(z_s + shift, pseudo) * sure).sum() / BATCH if n >= self.start else nothing,
            "distillation": (distilled * ~sure).sum() / BATCH if self.paper and n >= DISTILL_START else nothing,
        }
        self.prior = DECAY * self.prior + (1 - DECAY) * p.mean(dim=0)
        total = terms["supervised"] + terms["consistency"] + terms["distillation"]
        self.descend(total)
        return Expected(total, terms, sure & (n >= self.start), pseudo)

    def evaluate(self, n: int) -> Row:
        prior = {f"prior.{k}": float(self.prior[k]) for k in range(3)}
        return {"val_accuracy": self.accuracy(self.network), "competes": 1} | prior

    def memory(self) -> dict[str, Any]:
        return {"prior": self.prior}


def adello(tagged: Any, protocol: str, threshold: float, **options: Any) -> Training:
    hyper = {"threshold": threshold, "prior_decay": 0.9996}
    return tagged("adello", protocol, ITERATIONS, EVERY, learning_rate=0.02, hyper=hyper, **options)


@pytest.mark.parametrize("protocol", ["paper", "release"])
def test_adello(tagged: Any, protocol: str) -> None:
    training = adello(tagged, protocol, 0.6, warm_up=WARM_UP)
    oracle = AdelloOracle(training, protocol, 0.6)
    done = follow(training, oracle)
    distilled = [n for n, one in enumerate(done) if one.terms["distillation"].item() > 0]
    consistent = [n for n, one in enumerate(done) if one.terms["consistency"].item() > 0]
    assert consistent[0] == oracle.start and bool(distilled) == (protocol == "paper")
    if protocol == "paper":
        assert distilled[0] == DISTILL_START
    oracle.eval()
    (prediction,) = training.method.predict(training.method.validate_now(ITERATIONS).outputs).values()
    close(prediction.log_probs, oracle.network(oracle.x_v).log_softmax(dim=1), "predictions are not shifted")


def test_a_confidence_equal_to_the_cut_is_accepted(tagged: Any) -> None:
    rehearsal = adello(tagged, "paper", 0.6, warm_up=0)
    batch = rehearsal.draw()[0]
    drawn = Drawn(batch.x_l, batch.y_l, batch.x_u, batch.position_u)
    confidence = AdelloOracle(rehearsal, "paper", 0.6).forward(drawn)[1].softmax(dim=1).amax(dim=1)
    cut = float(confidence.sort().values[1])
    training = adello(tagged, "paper", cut, warm_up=0)
    done = follow(training, AdelloOracle(training, "paper", cut, 0))
    assert int(done[0].accepted.sum()) == BATCH - 1  # type: ignore[union-attr]
