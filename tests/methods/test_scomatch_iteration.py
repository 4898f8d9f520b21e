"""Whole iterations of SCOMatch, by the specification."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from safeecgmatch.engine.loop import Row, Training
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

ITERATIONS, EVERY, OOD = 48, 6, 3
BATCH, POOL, MEMORY = 10, 200, 13
EPOCH, PERIOD = 20, 3  # the pool in batches; the pool over 64
START = 12  # when the memory already holds a batch, and a moment of an update
CUT, LOWEST = 0.55, 0.3


class SCOMatchOracle(Oracle):
    network: Probe

    def __init__(self, training: Training, protocol: str, cut: float, start: int, plus_on_weak: bool) -> None:
        super().__init__(training)
        self.paper, self.cut, self.start, self.plus_on_weak = protocol == "paper", cut, start, plus_on_weak
        self.network = self.adopt(training.method.network)
        self.items: list[Tensor] = []
        self.scores: list[float] = []
        self.tallies, self.tau, self.fed = torch.zeros(OOD + 1, dtype=torch.int64), cut, torch.empty(0)
        self.orders: list[list[int]] = []
        self.start_adam()
        training.method.network.register_forward_pre_hook(self.watch)

    def watch(self, network: nn.Module, inputs: tuple[Tensor]) -> None:
        """What was fed last in training: the draw from the memory is the one thing that only the method knows."""
        if network.training:
            self.fed = inputs[0].detach().clone()

    def drawn_from_memory(self) -> list[int]:
        """Positions of as many different entries as there are labelled records, once there are so many.

        Which of two entries from the same record does not matter, as long as their scores are on one side of the cut.
        """
        order: list[int] = []
        for row in self.fed[BATCH : 2 * BATCH] if len(self.items) >= BATCH else []:
            left = [j for j, item in enumerate(self.items) if torch.equal(row, item) and j not in order]
            assert left, "what is fed is no entry of the memory, or one for the second time"
            order.append(left[0])
        return order

    def renew_threshold(self, n: int) -> None:
        i = n if self.paper else n % EPOCH
        if i == 0 and not self.paper:
            self.tau = self.cut
        if n >= self.start and i > 0 and i % PERIOD == 0:
            known = int(self.tallies[:OOD].sum())
            self.tau = min(self.cut, max(LOWEST, self.cut * int(self.tallies[OOD]) / known)) if known else self.cut
            self.tallies = torch.zeros_like(self.tallies)

    def iterate(self, n: int, drawn: Drawn) -> Expected:
        self.renew_threshold(n)
        order = self.drawn_from_memory()
        self.orders.append(order)
        x_w, x_s = weak(drawn.x_u), strong(drawn.x_u)
        x = torch.cat(
            [weak(drawn.x_l), *(self.items[j][None] for j in order), *([x_w, x_s] * (1 if self.paper else 2))]
        )
        z_l, z_m, z_w, z_s = self.network(x)[: 3 * BATCH + len(order)].split([BATCH, len(order), BATCH, BATCH])
        p = z_w.detach().softmax(dim=1)
        confidence, pseudo = p.max(dim=1)
        known = (confidence >= self.cut) & (pseudo < OOD)
        plus = known | ((confidence >= self.tau) & (pseudo == OOD))
        terms = {
            "supervised": cross_entropy(z_l, drawn.y_l).mean(),
            "memory": torch.zeros(()),
            "plus": torch.zeros(()),
            "known": (cross_entropy(z_s[:, :OOD], z_w[:, :OOD].argmax(dim=1)) * known).sum() / BATCH,
        }
        opened = n >= self.start
        if opened and order:
            unlikely = torch.tensor([self.scores[j] < self.cut for j in order])
            terms["memory"] = (cross_entropy(z_m, torch.full((BATCH,), OOD)) * unlikely).sum() / BATCH
        if opened:
            terms["plus"] = (cross_entropy(z_s, pseudo) * plus).sum() / BATCH
            if self.plus_on_weak:
                terms["plus"] = terms["plus"] / 2 + (cross_entropy(z_w, pseudo) * plus).sum() / (2 * BATCH)
        total = terms["supervised"] + terms["memory"] + terms["plus"] + terms["known"]
        for k in pseudo[confidence > self.cut].tolist():
            self.tallies[k] += 1
        likely = p[:, :OOD].amax(dim=1)
        self.items = [*self.items, x_w[likely.argmin()]][-MEMORY:]
        self.scores = [*self.scores, float(likely.min())][-MEMORY:]
        self.descend(total)
        return Expected(total, terms, plus if opened else known, pseudo)

    def evaluate(self, n: int) -> Row:
        return {"val_accuracy": self.accuracy(lambda x: self.network(x)[:, :OOD]), "tau_ood": self.tau, "competes": 1}

    def memory(self) -> dict[str, Any]:
        tau = torch.tensor(self.tau, dtype=torch.float64)
        return {"items": self.items, "scores": torch.tensor(self.scores), "tallies": self.tallies, "tau_ood": tau}


def scomatch(tagged: Any, protocol: str, cut: float = CUT, start: int = START, **hyper: Any) -> Training:
    """A head that is sure of some records, unseen class included."""
    training: Training = tagged(
        "scomatch", protocol, ITERATIONS, EVERY, warm_up=start, learning_rate=0.01, batch=BATCH, sets=noise_sets(POOL),
        hyper={"threshold": cut, "lowest_ood_threshold": LOWEST, "memory": MEMORY} | hyper,
        switches={} if protocol == "paper" else {"start": "2 epochs"},
    )  # fmt: skip
    generator, network = torch.Generator().manual_seed(2), training.method.network
    nn.init.normal_(network.encoder.weight, std=0.5, generator=generator)
    nn.init.normal_(network.fc.weight, std=0.8, generator=generator)
    return training


@pytest.mark.parametrize(("protocol", "plus_on_weak"), [("paper", False), ("paper", True), ("release", False)])
def test_scomatch(tagged: Any, protocol: str, plus_on_weak: bool) -> None:
    training = scomatch(tagged, protocol, plus_on_weak=plus_on_weak)
    oracle = SCOMatchOracle(training, protocol, CUT, START, plus_on_weak)
    done = follow(training, oracle)
    assert [bool(order) for order in oracle.orders] == [n >= BATCH for n in range(ITERATIONS)]
    assert oracle.orders[BATCH] != sorted(oracle.orders[BATCH])
    assert len({tuple(order) for order in oracle.orders[BATCH:]}) == ITERATIONS - BATCH
    assert len({row["tau_ood"] for row in training.history}) == 3
    pseudo = torch.cat([one.pseudo[one.accepted] for one in done])  # type: ignore[index,misc]
    assert {0, 1, OOD} <= set(pseudo.tolist()) and len(pseudo) < BATCH * ITERATIONS
    oracle.eval()
    z = oracle.network(oracle.x_v)
    (prediction,) = training.method.predict(training.method.validate_now(ITERATIONS).outputs).values()
    close(prediction.log_probs, z[:, :OOD].log_softmax(dim=1), "prediction")
    close(prediction.ood_score, z.softmax(dim=1)[:, OOD], "unseen score")


@pytest.mark.parametrize(("what", "start"), [("known", 0), ("unseen", 0), ("score", BATCH)])
def test_values_equal_to_the_cut(tagged: Any, what: str, start: int) -> None:
    """They are accepted, but neither tallied nor, in the memory, trained as unseen."""
    rehearsal = scomatch(tagged, "paper")
    batch = rehearsal.draw()[0]
    z = rehearsal.method.network(torch.cat([weak(batch.x_l), weak(batch.x_u), strong(batch.x_u)]))
    p = z[BATCH : 2 * BATCH].detach().softmax(dim=1)
    confidence, pseudo = p.max(dim=1)
    values = {"known": confidence[pseudo < OOD], "unseen": confidence[pseudo == OOD], "score": p[:, :OOD].amax(dim=1)}
    cut = float(values[what].min() if what == "score" else values[what].max())
    training = scomatch(tagged, "paper", cut, start)
    oracle = SCOMatchOracle(training, "paper", cut, start, False)
    done = follow(training, oracle)
    if what != "score":
        assert done[0].pseudo[done[0].accepted].eq(OOD).any() == (what == "unseen")  # type: ignore[index]
