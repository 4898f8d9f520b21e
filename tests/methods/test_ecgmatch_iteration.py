"""Whole iterations of ECGMatch, by the specification."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from safeecgmatch.engine.loop import Row, Training
from tests.methods.oracle import POOL, Drawn, Expected, Oracle, Probe, close, cross_entropy, follow, strong, weak

pytestmark = pytest.mark.usefixtures("unit_features")
ITERATIONS, EVERY, CLASSES, NEIGHBOURS = 14, 2, 3, 5
PRETRAINING = 6  # three evaluations
RAMP = 7
DECAY = 0.9998 ** (50_000 / ITERATIONS)


def binary(z: Tensor, target: Tensor) -> Tensor:
    return -(target * F.logsigmoid(z) + (1 - target) * F.logsigmoid(-z))


class TaughtOracle(Oracle):
    """Student and averaged teacher, and what the teacher last said of every record of the pool."""

    network: Probe
    features: Tensor | None = None
    scores: Tensor | None = None

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self.network = self.adopt(training.method.network)
        self.others = {"teacher": self.snapshot()}  # no part of the model
        self.start_adam()

    def snapshot(self) -> Probe:
        return copy.deepcopy(self.network).requires_grad_(False).eval()

    def overwrite(self, positions: Tensor, features: Tensor, scores: Tensor) -> None:
        assert self.features is not None and self.scores is not None
        for position, feature, score in zip(positions.tolist(), features, scores, strict=True):
            self.features[position], self.scores[position] = feature, score

    def neighbours(self, queries: Tensor, without: Tensor | None) -> list[list[int]]:
        assert self.features is not None
        cosines = (queries[:, None] * self.features[None]).sum(dim=2)
        nearest = cosines.argsort(dim=1, descending=True).tolist()
        own = [None] * len(queries) if without is None else without.tolist()
        return [[i for i in row if i != mine][:NEIGHBOURS] for row, mine in zip(nearest, own, strict=True)]

    def follow_student(self, statistics: bool) -> None:
        teacher = self.others["teacher"]
        for mine, theirs in zip(teacher.parameters(), self.network.parameters(), strict=True):
            mine.copy_(DECAY * mine + (1 - DECAY) * theirs.detach())
        if statistics:
            for mine, theirs in zip(teacher.buffers(), self.network.buffers(), strict=True):
                mine.copy_(theirs)

    def evaluate(self, n: int) -> Row:
        row: Row = {"val_accuracy": self.accuracy(self.network)}
        if self.features is not None:
            row["teacher_accuracy"] = self.accuracy(self.others["teacher"])
        return row

    def memory(self) -> dict[str, Any]:
        bank = None if self.features is None else {"features": self.features, "scores": self.scores}
        return {"teacher": self.others["teacher"].state_dict(), "bank": bank}


class PaperOracle(TaughtOracle):
    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self.others["best"] = self.snapshot()
        self.best_accuracy, self.best_moment = -1.0, 0

    def iterate(self, n: int, drawn: Drawn) -> Expected:
        size, y = len(drawn.x_l), F.one_hot(drawn.y_l, CLASSES).double()
        if n < PRETRAINING:
            supervised = binary(self.network(weak(drawn.x_l)), y).mean()
            self.descend(supervised)
            nothing = torch.zeros(len(drawn.x_u), dtype=torch.int64)
            return Expected(supervised, {"supervised": supervised}, nothing.bool(), nothing)
        teacher = self.others["teacher"]
        with torch.no_grad():
            said = teacher.features(weak(drawn.x_u))
            self.overwrite(drawn.position_u, said, torch.sigmoid(teacher.fc(said)))
            queries = self.snapshot().features(weak(drawn.x_u))
        assert self.scores is not None
        pbar = torch.stack([self.scores[rows].mean(dim=0) for rows in self.neighbours(queries, None)])
        z = self.network(torch.cat([weak(drawn.x_l), weak(drawn.x_u), strong(drawn.x_u)]))
        s = torch.sigmoid(z[size:])
        norms = s.square().sum(dim=0).sqrt()
        matrix = (s.T @ s / (torch.outer(norms, norms) + 1e-6)).clamp(0, 1)
        counts = torch.full((CLASSES,), 1.0) * self.labels_per_class
        wanted = torch.diag(counts / (counts + 1e-6))
        terms = {
            "supervised": binary(z[:size], y).mean(),
            "neighbour": ((2 * pbar - 1).abs() * binary(z[2 * size :], pbar)).mean(),
            "relationship": (matrix - wanted).square().sum().sqrt(),
        }
        total = terms["supervised"] + 0.8 * terms["neighbour"] + 1.2 * terms["relationship"]
        self.descend(total)
        self.follow_student(statistics=True)
        return Expected(total, terms, torch.ones(len(pbar), dtype=torch.bool), pbar.argmax(dim=1))

    labels_per_class: Tensor

    def evaluate(self, n: int) -> Row:
        row = super().evaluate(n) | {"competes": int(n > PRETRAINING)}
        return row | ({"pretraining_accuracy": self.best_accuracy} if n > EVERY else {})

    def after_evaluation(self, n: int, row: Row) -> None:
        if n > PRETRAINING:
            return
        if row["val_accuracy"] > self.best_accuracy:
            self.best_accuracy, self.others["best"], self.best_moment = row["val_accuracy"], self.snapshot(), n
        if n == PRETRAINING:
            self.network.load_state_dict(self.others["best"].state_dict())
            self.others["teacher"] = self.snapshot()
            self.start_adam()
            with torch.no_grad():
                self.features = self.others["teacher"].features(self.x_pool)
                self.scores = torch.sigmoid(self.others["teacher"].fc(self.features))

    def memory(self) -> dict[str, Any]:
        best = {"best_accuracy": self.best_accuracy, "best_weights": self.others["best"].state_dict()}
        return super().memory() | best


class ReleaseOracle(TaughtOracle):
    def iterate(self, n: int, drawn: Drawn) -> Expected:
        teacher = self.others["teacher"]
        with torch.no_grad():
            if self.features is None:
                self.features = teacher.features(weak(self.x_pool))
                self.scores = teacher.fc(self.features).softmax(dim=1)
            said = teacher.features(weak(drawn.x_u))
            self.overwrite(drawn.position_u, said, teacher.fc(said).softmax(dim=1))
        assert self.scores is not None
        nearest = self.neighbours(said, drawn.position_u)
        pbar = torch.stack([self.scores[rows].mean(dim=0) for rows in nearest])  # sums to 1 already
        z_l = self.network(weak(drawn.x_l))
        z_s = self.network(strong(drawn.x_u))
        s = z_s.softmax(dim=1)
        centred = s - s.mean(dim=0)
        unit = centred / centred.square().sum(dim=0).sqrt()
        terms = {
            "supervised": cross_entropy(z_l, drawn.y_l).mean(),
            "neighbour": (pbar * (pbar.log() - z_s.log_softmax(dim=1))).sum(dim=1).mean(),
            "relationship": ((unit.T @ unit).clamp(0, 1) - torch.eye(CLASSES)).norm(),  # 0 has the gradient 0
        }
        weight = math.exp(-5 * (1 - min(n / RAMP, 1)) ** 2)
        total = terms["supervised"] + weight * (terms["neighbour"] + 0.5 * terms["relationship"])
        self.descend(total)
        self.follow_student(statistics=False)
        return Expected(total, terms, torch.ones(len(pbar), dtype=torch.bool), pbar.argmax(dim=1))


def new(tagged: Any, protocol: str, seed: int) -> Training:
    switches = {"pretraining": 20_000} if protocol == "paper" else {}
    return tagged(
        "ecgmatch", protocol, ITERATIONS, EVERY, seed=seed, learning_rate=0.05, switches=switches, warm_up=RAMP,
        hyper={"ema_decay": 0.9998, "neighbours": NEIGHBOURS},
    )  # fmt: skip


@pytest.mark.parametrize(("seed", "start"), [(8, 2), (1, 4), (9, 6)])
def test_paper(tagged: Any, seed: int, start: int) -> None:
    """Seeds whose pre-training is best at its first, second and third evaluation; later ones tie with the first two."""
    training = new(tagged, "paper", seed)
    oracle = PaperOracle(training)
    assert training.labelled.labels is not None
    oracle.labels_per_class = training.labelled.labels.bincount(minlength=CLASSES)
    follow(training, oracle)
    assert oracle.best_moment == start
    assert training.best is not None and training.best.iteration > PRETRAINING
    (prediction,) = training.method.predict(training.method.validate_now(ITERATIONS).outputs).values()
    s = torch.sigmoid(oracle.network.eval()(oracle.x_v))
    close(prediction.log_probs.exp(), s / s.sum(dim=1, keepdim=True), "sigmoids divided by their sum")


def test_release(tagged: Any) -> None:
    training = new(tagged, "release", 1)
    oracle = ReleaseOracle(training)
    follow(training, oracle)
    teacher, student = oracle.others["teacher"], oracle.network
    assert not teacher.norm.running_mean.any() and student.norm.running_mean.any()
    assert oracle.features is not None and len(oracle.features) == POOL
    (prediction,) = training.method.predict(training.method.validate_now(ITERATIONS).outputs).values()
    close(prediction.log_probs, student.eval()(oracle.x_v).log_softmax(dim=1), "the student's prediction")
