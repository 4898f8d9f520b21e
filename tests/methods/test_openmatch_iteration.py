"""Whole iterations of OpenMatch, by the specification."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from safeecgmatch.engine.loop import Row, Training
from tests.methods.oracle import BATCH, POOL, Drawn, Expected, Oracle, Probe, close, cross_entropy, follow, strong, weak

START, EVERY, ITERATIONS, CLASSES = 4, 3, 12, 3
EPOCH = 6  # iterations in which every pool record is drawn once


def pairs(o: Tensor) -> tuple[Tensor, Tensor]:
    """(outlier, inlier) probabilities."""
    r = o.reshape(len(o), 2, CLASSES).softmax(dim=1)
    return r[:, 0], r[:, 1]


def one_vs_all(o: Tensor, y: Tensor) -> Tensor:
    outlier, inlier = pairs(o)
    rows = torch.arange(len(y))
    negative = -(outlier + 1e-8).log()
    negative[rows, y] = 0.0
    return (-(inlier[rows, y] + 1e-8).log()).mean() + negative.max(dim=1).values.mean()


def consistency(o_1: Tensor, o_2: Tensor) -> Tensor:
    return sum(((a - b) ** 2).sum(dim=1).mean() for a, b in zip(pairs(o_1), pairs(o_2), strict=True))  # type: ignore


def entropy(o: Tensor) -> Tensor:
    return sum(-(r * (r + 1e-8).log()) for r in pairs(o)).mean()  # type: ignore[union-attr]


class OpenMatchOracle(Oracle):
    network: Probe

    def __init__(self, training: Training, protocol: str, threshold: float, start: int = START) -> None:
        super().__init__(training)
        method: Any = training.method
        self.paper, self.threshold, self.start = protocol == "paper", threshold, start
        self.network, self.ova = self.adopt(method.network), self.adopt(method.ova)
        self.selected, self.drawn_since = torch.arange(POOL), torch.empty(0, dtype=torch.int64)
        self.start_adam()

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.network.features(x)
        return self.network.fc(features), self.ova(features)

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
            assert drawn.chosen is not None
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
        return {"val_accuracy": self.accuracy(self.network), "selected_share": len(self.selected) / POOL}

    def after_evaluation(self, n: int, row: Row) -> None:
        if self.start < n < self.setting.iterations:  # after the last one nothing is drawn
            self.select()

    def memory(self) -> dict[str, Any]:
        return {"selected": self.selected}


@pytest.mark.parametrize("nobody", [False, True])
@pytest.mark.parametrize(("protocol", "threshold"), [("paper", None), ("paper", 0.6), ("release", 0.6)])
def test_openmatch(tagged: Any, protocol: str, threshold: float | None, nobody: bool) -> None:
    """`paper` has no threshold of its own; one shows that its mean is over the batch."""
    switches = ({} if threshold is None else {"threshold": threshold}) | (
        {} if protocol == "paper" else {"start": 16_500}
    )
    training = tagged("openmatch", protocol, ITERATIONS, EVERY, warm_up=START, learning_rate=0.03, switches=switches)
    ova: nn.Linear = training.method.ova
    with torch.no_grad():
        ova.weight[CLASSES:] -= 0.1
        if nobody:
            ova.weight[:CLASSES] += 3.0  # all look like outliers: the first selection is everything, and stays
    oracle = OpenMatchOracle(training, protocol, threshold or 0.0)
    done = follow(training, oracle)
    taken = [int(one.accepted.sum()) for one in done][START:]  # type: ignore[union-attr]
    shares = [row["selected_share"] for row in training.history]
    assert sum(taken) == BATCH * len(taken) if threshold is None else 0 < sum(taken) < BATCH * len(taken)
    assert shares == [1.0] * 4 if nobody else len(set(shares)) > 2
    oracle.eval()
    z, o = oracle.heads(oracle.x_v)
    rows, k = torch.arange(len(z)), z.argmax(dim=1)
    (prediction,) = training.method.predict(training.method.validate_now(ITERATIONS).outputs).values()
    close(prediction.log_probs, z.log_softmax(dim=1), "prediction")
    close(prediction.ood_score, pairs(o)[0][rows, k], "the outlier probability of the predicted class")


def test_a_record_on_the_threshold_and_a_tie_in_the_selection(tagged: Any) -> None:
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
    assert done.accepted is not None and not done.accepted[0]
