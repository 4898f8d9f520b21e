"""OpenMatch: golden values, and whole iterations by the specification."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from safeecgmatch.engine.loop import Row, Training
from safeecgmatch.methods.openmatch.step import step
from tests.methods.harness import CLASSES, hyper_of, switches_of
from tests.methods.oracle import (
    BATCH,
    POOL,
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
    taken,
    weak,
)
from tests.methods.parts.test_calibration import GOLDEN, RELATIVE, golden_inputs


def test_step_is_the_weighted_sum_of_golden_terms() -> None:
    g = golden_inputs()
    hyper = hyper_of("openmatch")
    result = step(g["Z"], g["O1"], g["y"], g["O1"], g["O2"], hyper)
    wanted = {
        "supervised": GOLDEN["L_cls"],
        "ova": GOLDEN["L_ood"],
        "entropy": GOLDEN["L_em(O1,O2)"],
        "socr": GOLDEN["L_socr(O1,O2)"],
    }
    assert {name: term.item() for name, term in result.terms.items()} == pytest.approx(wanted, rel=RELATIVE)
    total = wanted["supervised"] + wanted["ova"] + 0.1 * wanted["entropy"] + 0.5 * wanted["socr"]
    assert result.total.item() == pytest.approx(total, rel=RELATIVE)


def test_thresholds() -> None:
    assert [switches_of("openmatch", protocol).threshold for protocol in ("paper", "release")] == [0.0, 0.95]


START, EVERY, ITERATIONS = 4, 3, 12
EPOCH = 6  # iterations in which every pool record is drawn once


def consistency(o_1: Tensor, o_2: Tensor) -> Tensor:
    return sum(((a - b) ** 2).sum(dim=1).mean() for a, b in zip(pairs(o_1), pairs(o_2), strict=True))


def entropy(o: Tensor) -> Tensor:
    return sum(-(r * (r + 1e-8).log()) for r in pairs(o)).mean()


class OpenMatchOracle(Oracle):
    networks = ("network", "ova")

    def __init__(self, training: Training, protocol: str, threshold: float, start: int = START) -> None:
        super().__init__(training)
        self.paper, self.threshold, self.start = protocol == "paper", threshold, start
        self.selected, self.drawn_since = torch.arange(POOL), torch.empty(0, dtype=torch.int64)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.network.features(x)
        return self.network.fc(features), self.ova(features)

    def predict(self, x: Tensor) -> Said:
        """The unseen score is the outlier probability of the predicted class."""
        z, o = self.heads(x)
        return {"main": (z.log_softmax(dim=1), pairs(o)[0][torch.arange(len(z)), z.argmax(dim=1)])}

    @torch.no_grad()
    def select(self) -> None:
        """Every pool record by one weak view; the pair of the predicted class, a tie is not selected."""
        self.eval()
        z, o = self.heads(weak(self.x_pool))
        self.train()
        (outlier, inlier), rows, k = pairs(o), torch.arange(POOL), z.argmax(dim=1)
        chosen = (inlier[rows, k] > outlier[rows, k]).nonzero().squeeze(1)
        self.selected = chosen if len(chosen) else self.selected
        self.drawn_since = self.drawn_since[:0]

    def check_draw(self, positions: Tensor) -> None:
        """From the selection alone, in an order that starts anew with every selection."""
        size, self.drawn_since = len(self.selected), torch.cat([self.drawn_since, positions])
        if self.paper:
            for part in self.drawn_since.split(size):
                assert len(part.unique()) == len(part) and set(part.tolist()) <= set(self.selected.tolist())
        else:
            generator = torch.Generator().manual_seed(0)
            order = torch.cat([torch.randperm(size, generator=generator) for _ in range(EPOCH * BATCH)])
            order = order[: EPOCH * BATCH].repeat(2)[: len(self.drawn_since)]
            assert self.selected[order].tolist() == self.drawn_since.tolist()

    def iterate(self, n: int, drawn: Drawn) -> Expected:
        if n == self.start:
            self.select()
        z, o = self.heads(torch.cat([weak(drawn.x_l), weak(drawn.x_l, 1), weak(drawn.x_u), weak(drawn.x_u, 1)]))
        y = torch.cat([drawn.y_l, drawn.y_l])
        terms = {
            "supervised": cross_entropy(z[: 2 * BATCH], y).mean(),
            "ova": one_vs_all(o[: 2 * BATCH], y),
            "entropy": (entropy(o[2 * BATCH : 3 * BATCH]) + entropy(o[3 * BATCH :])) / 2,
            "socr": consistency(o[2 * BATCH : 3 * BATCH], o[3 * BATCH :]),
            "fix": torch.zeros(()),
        }
        accepted, pseudo = torch.zeros(BATCH, dtype=torch.bool), torch.zeros(BATCH, dtype=torch.int64)
        if n >= self.start:
            self.check_draw(drawn.chosen)
            records = self.x_pool[drawn.chosen]
            z_w, z_s = self.network(torch.cat([weak(records), strong(records)])).split(BATCH)
            confidence, pseudo = z_w.detach().softmax(dim=1).max(dim=1)
            accepted = confidence > self.threshold
            count = BATCH if self.paper else max(int(accepted.sum()), 1)
            terms["fix"] = (cross_entropy(z_s, pseudo) * accepted).sum() / count
        total = terms["supervised"] + terms["ova"] + 0.1 * terms["entropy"] + 0.5 * terms["socr"] + terms["fix"]
        self.descend(total)
        return Expected(total, terms, accepted, pseudo, drawn.chosen)

    def evaluate(self, n: int) -> Row:
        return super().evaluate(n) | {"selected_share": len(self.selected) / POOL}

    def after_evaluation(self, n: int, row: Row) -> None:
        if self.start < n < self.setting.iterations:  # after the last one nothing is drawn
            self.select()

    def memory(self) -> dict[str, Any]:
        return {"selected": self.selected}


@pytest.mark.parametrize("nobody", [False, True])
@pytest.mark.parametrize(("protocol", "threshold"), [("paper", None), ("paper", 0.6), ("release", 0.6)])
def test_openmatch(tagged: Tagged, protocol: str, threshold: float | None, nobody: bool) -> None:
    """`paper` has no threshold of its own; one shows that its mean is over the batch."""
    switches = ({} if threshold is None else {"threshold": threshold}) | (
        {} if protocol == "paper" else {"start": 16_500}
    )
    training = tagged("openmatch", protocol, ITERATIONS, EVERY, warm_up=START, learning_rate=0.03, switches=switches)
    with torch.no_grad():
        training.method.ova.weight[CLASSES:] -= 0.1
        if nobody:
            training.method.ova.weight[:CLASSES] += 3.0  # all look like outliers: the first selection is all, and stays
    accepted = taken(follow(training, OpenMatchOracle(training, protocol, threshold or 0.0)))[START:]
    shares = [row["selected_share"] for row in training.history]
    assert sum(accepted) == BATCH * len(accepted) if threshold is None else 0 < sum(accepted) < BATCH * len(accepted)
    assert shares == [1.0] * 4 if nobody else len(set(shares)) > 2


def test_a_record_on_the_threshold_and_a_tie_in_the_selection(tagged: Tagged) -> None:
    """Both are strict; `paper` has no threshold."""

    def at_once(threshold: float) -> Training:
        switches = {"start": 0, "threshold": threshold}
        training = tagged("openmatch", "release", 1, 1, learning_rate=0.03, switches=switches)
        with torch.no_grad():
            training.method.ova.weight[CLASSES] = training.method.ova.weight[0]  # ties for class 0
        return training

    training = at_once(0.0)
    follow(training, oracle := OpenMatchOracle(training, "release", 0.0, start=0))
    assert 0 < len(oracle.selected) < POOL
    records = oracle.x_pool[oracle.drawn_since]
    z_w = at_once(0.0).method.network(torch.cat([weak(records), strong(records)]))[:BATCH]
    threshold = z_w.softmax(dim=1).max(dim=1).values[0].item()
    training = at_once(threshold)
    (done,) = follow(training, OpenMatchOracle(training, "release", threshold, start=0))
    assert not done.accepted[0]
