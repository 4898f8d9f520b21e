"""IOMatch: vectors, the heads of each protocol, and whole iterations by the specification."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from safeecgmatch.engine.loop import Training
from safeecgmatch.methods.iomatch.alignment import Alignment, align
from safeecgmatch.methods.parts.one_vs_all import one_vs_all_loss, one_vs_all_probabilities
from tests.methods.harness import CLASSES, toy_training
from tests.methods.oracle import (
    Drawn,
    Expected,
    Oracle,
    Said,
    Tagged,
    cross_entropy,
    follow,
    one_vs_all,
    pairs,
    strong,
    tagged_sets,
    taken,
    weak,
)
from tests.vectors import EXACT, double, load_vector


@pytest.mark.parametrize("case", load_vector("iomatch_ova_loss")["cases"])
def test_one_vs_all_loss_vector(case: dict) -> None:
    logits = double(case["logits"]).requires_grad_()
    outlier, inlier = one_vs_all_probabilities(logits)
    torch.testing.assert_close(outlier, double(case["outlier_prob"]), **EXACT)
    torch.testing.assert_close(inlier, double(case["inlier_prob"]), **EXACT)
    loss = one_vs_all_loss(logits, torch.tensor(case["labels"]))
    loss.backward()
    assert loss.item() == pytest.approx(case["loss"], abs=1e-6)
    torch.testing.assert_close(logits.grad, double(case["grad_logits"]), **EXACT)


def test_alignment_vector() -> None:
    vector = load_vector("iomatch_dist_align")
    state = Alignment(torch.zeros(vector["queue_length"], vector["K"]))
    for expected in vector["steps"]:
        aligned, state = align(double(expected["probs"]), state)
        torch.testing.assert_close(aligned, double(expected["aligned"]), **EXACT)
        torch.testing.assert_close(state.means, torch.tensor(expected["queue_after"]), **EXACT)
        assert state.means.dtype == torch.float32
        assert state.pointer == expected["ptr_after"]


def test_heads_of_each_protocol() -> None:
    paper, release = toy_training("iomatch", "paper").method, toy_training("iomatch", "release").method
    assert paper.projection[2].out_features == 128 and paper.ova.bias is None
    assert release.projection[2].out_features == release.network.dim and release.ova.bias is not None
    for linear in (release.network.fc, release.projection[0], release.projection[2], release.ova, release.open):
        assert linear.weight.std().item() == pytest.approx(0.02, rel=0.5) and not linear.bias.any()
    assert paper.open.weight.std().item() == pytest.approx(math.sqrt(2 / (128 + 4)), rel=0.2)
    assert paper.ova.weight.std().item() == pytest.approx(math.sqrt(2 / (128 + 6)), rel=0.2)
    assert paper.network.fc.weight.std().item() == pytest.approx(0.02, rel=0.5) and not paper.open.bias.any()
    assert paper.projection[0].bias.any()


ITERATIONS, EVERY = 35, 7
BATCH, POOL = 15, 150  # the pool is two batches of the monitoring pass, and an epoch of ten iterations
EPOCH, QUEUE = 10, 7
START, RAMP = 4, 6
Cuts = tuple[float, float, float]
CUTS = 0.6, 0.45, 0.48  # confidence, open-set target, outlier score


def soft(target: Tensor, z: Tensor) -> Tensor:
    return -(target * z.log_softmax(dim=1)).sum(dim=1)


class IOMatchOracle(Oracle):
    networks = ("network", "projection", "ova", "open")

    def __init__(self, training: Training, protocol: str, align: bool, cuts: Cuts) -> None:
        super().__init__(training)
        self.paper, self.aligns, self.cuts = protocol == "paper", align, cuts
        self.ring, self.pointer = torch.zeros(QUEUE, CLASSES), 0

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

    def predict(self, x: Tensor) -> Said:
        z, o, _ = self.heads(x)
        return {"main": (z.log_softmax(dim=1), (z.softmax(dim=1) * pairs(o)[0]).sum(dim=1))}

    def memory(self) -> dict[str, Any]:
        return {"means": self.ring, "pointer": self.pointer} if self.aligns else {}


def iomatch(tagged: Tagged, protocol: str, align: bool = True, cuts: Cuts = CUTS) -> tuple[Training, IOMatchOracle]:
    """Heads that are sure enough for every mask to let some records pass."""
    hyper = dict(zip(("threshold", "open_threshold", "outlier_threshold"), cuts, strict=True)) | {"queue": QUEUE}
    warm_up = START if protocol == "paper" else RAMP
    training = tagged(
        "iomatch", protocol, ITERATIONS, EVERY, warm_up=warm_up, learning_rate=0.01, hyper=hyper,
        switches={"align": align}, batch=BATCH, sets=tagged_sets(POOL, wave=0.0),
    )  # fmt: skip
    generator, method = torch.Generator().manual_seed(1), training.method
    first, _, last = method.projection
    for layer in (method.network.encoder, method.network.fc, first, last, method.ova, method.open):
        nn.init.normal_(layer.weight, std=0.8, generator=generator)
    return training, IOMatchOracle(training, protocol, align, cuts)


@pytest.mark.parametrize(("protocol", "align"), [("paper", True), ("paper", False), ("release", True)])
def test_iomatch(tagged: Tagged, protocol: str, align: bool) -> None:
    training, oracle = iomatch(tagged, protocol, align)
    accepted = taken(follow(training, oracle))
    for part in (accepted[:START], accepted[START:]):
        assert 0 < sum(part) < BATCH * len(part)
    assert len(training.method.memory()) == 2 * align


@pytest.mark.parametrize("which", range(3))
def test_values_equal_to_a_cut(tagged: Tagged, which: int) -> None:
    """Confidence and open-set target pass, the outlier score does not."""
    training, _ = iomatch(tagged, "paper")
    (rehearsal,) = training.method.losses(training.draw()[0], 0)
    values = rehearsal.aligned.amax(dim=1), rehearsal.target.amax(dim=1), rehearsal.target[:, -1]
    passing = (values[2] < 0.6) if which == 0 else (values[0] >= 0.4)  # the other masks let it through
    cuts = [0.4, 0.4, 0.6]
    cuts[which] = float(values[which][passing].median())
    training, oracle = iomatch(tagged, "paper", cuts=(cuts[0], cuts[1], cuts[2]))
    cuts[which] -= 1e-12  # whatever the rounding
    oracle.cuts = cuts[0], cuts[1], cuts[2]
    follow(training, oracle)
