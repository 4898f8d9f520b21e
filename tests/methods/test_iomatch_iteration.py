"""Whole iterations of IOMatch, by the specification."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from safeecgmatch.engine.loop import Row, Training
from tests.methods.harness import only_losses
from tests.methods.oracle import (
    Drawn,
    Expected,
    Oracle,
    Probe,
    close,
    cross_entropy,
    follow,
    noise_sets,
    strong,
    weak,
)

ITERATIONS, EVERY, CLASSES = 35, 7, 3
BATCH, POOL = 15, 150  # the pool is two batches of the monitoring pass, and an epoch of ten iterations
EPOCH, QUEUE = 10, 7
START, RAMP = 4, 6
Cuts = tuple[float, float, float]
CUTS = 0.6, 0.45, 0.48  # confidence, open-set target, outlier score


def pairs(o: Tensor) -> tuple[Tensor, Tensor]:
    """(outlier, inlier) probabilities."""
    outlier, inlier = o[:, :CLASSES].exp(), o[:, CLASSES:].exp()
    return outlier / (outlier + inlier), inlier / (outlier + inlier)


def one_vs_all(o: Tensor, y: Tensor) -> Tensor:
    (outlier, inlier), rows = pairs(o), torch.arange(len(y))
    negative = -(outlier + 1e-8).log()
    negative[rows, y] = 0.0
    return (-(inlier[rows, y] + 1e-8).log()).mean() + negative.max(dim=1).values.mean()


def soft(target: Tensor, z: Tensor) -> Tensor:
    return -(target * z.log_softmax(dim=1)).sum(dim=1)


class IOMatchOracle(Oracle):
    network: Probe

    def __init__(self, training: Training, protocol: str, align: bool, cuts: Cuts) -> None:
        super().__init__(training)
        method: Any = training.method
        self.paper, self.aligns, self.cuts = protocol == "paper", align, cuts
        self.network, self.projection = self.adopt(method.network), self.adopt(method.projection)
        self.ova, self.open = self.adopt(method.ova), self.adopt(method.open)
        self.ring, self.pointer = torch.zeros(QUEUE, CLASSES), 0
        self.start_adam()

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = self.network.features(x)
        projected = self.projection(features)
        return self.network.fc(features), self.ova(projected), self.open(projected)

    def align(self, p: Tensor) -> Tensor:
        if not self.aligns:
            return p
        self.ring[self.pointer] = p.mean(dim=0)
        self.pointer = (self.pointer + 1) % QUEUE
        scaled = p * (1 / CLASSES + 1e-6) / (self.ring.sum(dim=0) / QUEUE + 1e-6)
        return scaled / scaled.sum(dim=1, keepdim=True)

    @torch.no_grad()
    def monitoring_pass(self) -> None:
        self.eval()
        for x in (self.x_pool[:128], self.x_pool[128:]):
            self.align(self.network(weak(x)).softmax(dim=1))
        self.train()

    def targets(self, z_w: Tensor, o_w: Tensor) -> tuple[Tensor, Tensor]:
        """p~ and q, whose last entry is the outlier score."""
        p, (outlier, inlier) = self.align(z_w.detach().softmax(dim=1)), pairs(o_w.detach())
        return p, torch.cat([p * inlier, (p * outlier).sum(dim=1, keepdim=True)], dim=1)

    def iterate(self, n: int, drawn: Drawn) -> Expected:
        if not self.paper and n % EPOCH == 0:
            self.monitoring_pass()
        x = torch.cat([weak(drawn.x_l), weak(drawn.x_u), strong(drawn.x_u)])
        (z_l, z_w, z_s), (o_l, o_w, _), (_, _, c_s) = (head.split(BATCH) for head in self.heads(x))
        p, q = self.targets(z_w, o_w)
        cut, open_cut, outlier_cut = self.cuts
        accepted = (q[:, -1] < outlier_cut) & (p.amax(dim=1) >= cut)
        terms = {
            "closed": cross_entropy(z_l, drawn.y_l).mean(),
            "ova": one_vs_all(o_l, drawn.y_l),
            "inlier": (soft(p, z_s) * accepted).sum() / BATCH,
            "open": (soft(q, c_s) * (q.amax(dim=1) >= open_cut)).sum() / BATCH,
        }
        if self.paper:
            unlabelled = terms["inlier"] + terms["open"] if n >= START else terms["inlier"]  # no step without gradient
        else:
            unlabelled = math.exp(-5 * (1 - min(n / RAMP, 1)) ** 2) * (terms["inlier"] + terms["open"])
        total = terms["closed"] + terms["ova"] + unlabelled
        self.descend(total)
        return Expected(total, terms, accepted, p.argmax(dim=1))

    def evaluate(self, n: int) -> Row:
        return {"val_accuracy": self.accuracy(self.network), "competes": 1}

    def memory(self) -> dict[str, Any]:
        return {"means": self.ring, "pointer": self.pointer} if self.aligns else {}


def iomatch(tagged: Any, protocol: str, align: bool = True, cuts: Cuts = CUTS) -> tuple[Training, IOMatchOracle]:
    """Heads that are sure enough for every mask to let some records pass."""
    hyper = dict(zip(("threshold", "open_threshold", "outlier_threshold"), cuts, strict=True)) | {"queue": QUEUE}
    warm_up = START if protocol == "paper" else RAMP
    training = tagged(
        "iomatch", protocol, ITERATIONS, EVERY, warm_up=warm_up, learning_rate=0.01, hyper=hyper,
        switches={"align": align}, batch=BATCH, sets=noise_sets(POOL),
    )  # fmt: skip
    generator, method = torch.Generator().manual_seed(1), training.method
    for layer in (
        method.network.encoder,
        method.network.fc,
        method.projection[0],
        method.projection[2],
        method.ova,
        method.open,
    ):
        nn.init.normal_(layer.weight, std=0.8, generator=generator)
    return training, IOMatchOracle(training, protocol, align, cuts)


@pytest.mark.parametrize(("protocol", "align"), [("paper", True), ("paper", False), ("release", True)])
def test_iomatch(tagged: Any, protocol: str, align: bool) -> None:
    training, oracle = iomatch(tagged, protocol, align)
    done = follow(training, oracle)
    for part in (done[:START], done[START:]):
        assert 0 < sum(int(one.accepted.sum()) for one in part) < BATCH * len(part)  # type: ignore[union-attr]
    assert len(training.method.memory()) == 2 * align
    oracle.eval()
    z, o, _ = oracle.heads(oracle.x_v)
    (prediction,) = training.method.predict(training.method.validate_now(ITERATIONS).outputs).values()
    close(prediction.log_probs, z.log_softmax(dim=1), "prediction")
    close(prediction.ood_score, (z.softmax(dim=1) * pairs(o)[0]).sum(dim=1), "outlier score")


@pytest.mark.parametrize("which", range(3))
def test_values_equal_to_a_cut(tagged: Any, which: int) -> None:
    """Confidence and open-set target pass, the outlier score does not."""
    rehearsal: Any = only_losses(iomatch(tagged, "paper")[0], 0)
    values = rehearsal.aligned.amax(dim=1), rehearsal.target.amax(dim=1), rehearsal.target[:, -1]
    passing = (values[2] < 0.6) if which == 0 else (values[0] >= 0.4)  # the other masks let it through
    cuts = [0.4, 0.4, 0.6]
    cuts[which] = float(values[which][passing].median())
    training, oracle = iomatch(tagged, "paper", cuts=(cuts[0], cuts[1], cuts[2]))
    cuts[which] -= 1e-12  # whatever the rounding
    oracle.cuts = cuts[0], cuts[1], cuts[2]
    follow(training, oracle)
