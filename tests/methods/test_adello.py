"""Adello: vectors, and whole iterations by the specification."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from safeecgmatch.engine.loop import Row, Training
from safeecgmatch.methods.adello.method import Logits, Priors, alpha_at, shifts, step
from tests.methods.harness import hyper_of
from tests.methods.oracle import (
    BATCH,
    Drawn,
    Expected,
    Oracle,
    Tagged,
    cross_entropy,
    first_drawn,
    follow,
    strong,
    weak,
)
from tests.vectors import EXACT, double, load_vector

VECTOR = load_vector("adello_losses")


@pytest.mark.parametrize("case", VECTOR["cases"])
def test_a_step_gives_the_vector(case: dict) -> None:
    """With weak logits that give its mask."""
    expected = case["expected"]
    alpha = alpha_at(case["t"], case["t_max"], VECTOR["alpha_min"], VECTOR["k"])
    assert alpha == pytest.approx(expected["alpha"], abs=1e-9)
    priors = Priors(double(case["p_hat"]), double(case["p_labelled"]))
    for found, name in zip(shifts(*priors, alpha), ("labelled_shift", "strong_shift"), strict=True):
        torch.testing.assert_close(found, double(expected[name]), **EXACT)
    z_l, z_s = double(case["labelled_logits"]).requires_grad_(), double(case["strong_logits"]).requires_grad_()
    sure = zip(case["pseudo_labels"], case["mask"], strict=True)
    z_w = double([[(30.0 if accepted else 1.0) * (k == y) for k in range(3)] for y, accepted in sure])
    active = {"consistency", "distillation"}
    result = step(Logits(z_l, z_w, z_s), torch.tensor(case["labels"]), priors, alpha, active, hyper_of("adello"))
    assert result.accepted.tolist() == case["mask"]
    labelled, consistency = result.terms["supervised"], result.terms["consistency"]
    (labelled + consistency).backward()
    assert labelled.item() == pytest.approx(expected["L_lab"], abs=1e-6)
    assert consistency.item() == pytest.approx(expected["L_cons"], abs=1e-6)
    torch.testing.assert_close(z_l.grad, double(expected["grad_labelled"]), **EXACT)
    torch.testing.assert_close(z_s.grad, double(expected["grad_strong"]), **EXACT)


def test_single_precision_logits_are_shifted_in_double_and_get_single_gradients() -> None:
    z = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    priors = Priors(double([0.7, 0.2, 0.1]), double([1 / 3] * 3))
    result = step(Logits(z[:2], z[2:4], z[4:]), torch.tensor([0, 1]), priors, 0.5, {"consistency"}, hyper_of("adello"))
    assert result.terms["supervised"].dtype == result.prior.dtype == torch.float64
    result.terms["supervised"].backward()
    assert z.grad is not None and z.grad.dtype == torch.float32


ITERATIONS, EVERY, WARM_UP = 25, 5, 3
RELEASE_START = 20  # the fifth epoch
DISTILL_START = 5  # 50,000 of 262,144
DECAY = 0.9996 ** (50_000 / ITERATIONS)


class AdelloOracle(Oracle):
    def __init__(self, training: Training, protocol: str, threshold: float, warm_up: int = WARM_UP) -> None:
        super().__init__(training)
        self.paper, self.threshold = protocol == "paper", threshold
        self.start = warm_up if self.paper else RELEASE_START
        self.prior = torch.full((3,), 1 / 3)

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
        return super().evaluate(n) | {f"prior.{k}": float(self.prior[k]) for k in range(3)}

    def memory(self) -> dict[str, Any]:
        return {"prior": self.prior}


def adello(tagged: Tagged, protocol: str, threshold: float, **options: Any) -> Training:
    hyper = {"threshold": threshold, "prior_decay": 0.9996}
    return tagged("adello", protocol, ITERATIONS, EVERY, learning_rate=0.02, hyper=hyper, **options)


@pytest.mark.parametrize("protocol", ["paper", "release"])
def test_adello(tagged: Tagged, protocol: str) -> None:
    training = adello(tagged, protocol, 0.6, warm_up=WARM_UP)
    oracle = AdelloOracle(training, protocol, 0.6)
    done = follow(training, oracle)
    distilled = [n for n, one in enumerate(done) if one.terms["distillation"].item() > 0]
    consistent = [n for n, one in enumerate(done) if one.terms["consistency"].item() > 0]
    assert consistent[0] == oracle.start
    assert distilled[:1] == ([DISTILL_START] if protocol == "paper" else [])


def test_a_confidence_equal_to_the_cut_is_accepted(tagged: Tagged) -> None:
    rehearsal = adello(tagged, "paper", 0.6, warm_up=0)
    confidence = AdelloOracle(rehearsal, "paper", 0.6).forward(first_drawn(rehearsal))[1].softmax(dim=1).amax(dim=1)
    cut = float(confidence.sort().values[1])
    training = adello(tagged, "paper", cut, warm_up=0)
    done = follow(training, AdelloOracle(training, "paper", cut, 0))
    assert int(done[0].accepted.sum()) == BATCH - 1
