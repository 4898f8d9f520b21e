"""ECGMatch, faithful and as published: vectors, hand-made targets, and whole iterations by the specification."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from safeecgmatch.engine.loop import Row, Training
from safeecgmatch.methods.ecgmatch import release
from safeecgmatch.methods.ecgmatch.step import neighbour_targets, step
from tests.methods.harness import CLASSES, run_to, switches_of, toy_training
from tests.methods.oracle import POOL, Drawn, Expected, Oracle, Probe, Said, Tagged, cross_entropy, follow, strong, weak
from tests.vectors import load_vector


def test_step_reproduces_the_original() -> None:
    vector = load_vector("ecgmatch_original_step_losses")

    def close(actual: torch.Tensor, key: str) -> None:
        expected = torch.tensor(vector[key])
        torch.testing.assert_close(actual.detach(), expected, atol=vector["atol"], rtol=vector["rtol"])

    features, scores = torch.tensor(vector["feature_bank"]), torch.tensor(vector["score_bank"])
    targets = neighbour_targets(torch.tensor(vector["student_query_features"]), features, scores, 3)
    assert targets.nearest.tolist() == vector["neighbour_idx"]
    close(targets.scores, "pseudo_target")
    close(targets.weights, "agreement_weight")
    logits = torch.tensor(vector["logits"], requires_grad=True)
    z_l, z_w, z_s = logits.split([2, 3, 3])
    wanted, switches = torch.tensor(vector["relationship_target"]), switches_of("ecgmatch", "paper")
    result = step(z_l, torch.tensor(vector["labels"]), z_w, z_s, targets, wanted, switches)
    close(result.terms["supervised"], "sup_loss")
    close(result.terms["neighbour"], "weighted_unsup")
    close(result.terms["relationship"], "relationship_loss")
    close(result.total, "total")
    result.total.backward()
    close(logits.grad, "grad_logits")


def test_targets_of_the_release_leave_out_the_own_row() -> None:
    features = F.normalize(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, 0.3], [0.0, 1.0]]), dim=1)
    scores = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
    targets = release.neighbour_targets(features[:1], torch.tensor([0]), features, scores, 2)
    assert targets.nearest.tolist() == [[1, 2]]
    torch.testing.assert_close(targets.probabilities, torch.tensor([[0.0, 0.75, 0.25]]))
    # std of (0, 0), (1, 0.5), (0, 0.5) with n - 1, averaged over the classes
    disagreement = 2 * (0.5**2 / 2) ** 0.5 / 3
    torch.testing.assert_close(targets.agreement, torch.tensor([0.75 * (1 - disagreement)]))


def test_the_agreement_weighs_the_release_s_divergence_where_it_is_asked_to() -> None:
    generator = torch.Generator().manual_seed(0)
    z_l, z_s = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    scores = torch.rand(9, 3, generator=generator, dtype=torch.float64).softmax(dim=1)
    features = F.normalize(torch.randn(9, 4, generator=generator, dtype=torch.float64), dim=1)
    targets = release.neighbour_targets(features[:5], torch.arange(5), features, scores, 3)
    weighting, y = switches_of("ecgmatch", "release", agreement_weight=True), torch.tensor([0, 1, 2, 0, 1])
    weighted = release.step(z_l, y, z_s, targets, torch.eye(3), 1.0, weighting).terms["neighbour"]
    rows = F.kl_div(z_s.log_softmax(dim=1), targets.probabilities, reduction="none").sum(dim=1)
    torch.testing.assert_close(weighted, (rows * targets.agreement).mean())


@pytest.mark.parametrize(
    ("iterations", "every", "expected"),
    [(50_000, 1000, 5000), (150, 50, 50), (2000, 200, 200), (2100, 150, 300), (20, 20, 20)],
)
def test_pretraining_ends_with_an_evaluation(iterations: int, every: int, expected: int) -> None:
    method = toy_training("ecgmatch", "paper", iterations=iterations, epoch=every).method
    assert method.pretraining == expected
    assert not method.competes(expected) and method.competes(expected + every)


@pytest.mark.parametrize("option", [{"views": "ecg_augment"}, {"relationship": "euclidean"}, {"teacher_bn": "ema"}])
def test_options_run(option: dict[str, Any]) -> None:
    training = toy_training("ecgmatch", "paper", switches=option)
    run_to(training, 8)
    first, second = training.history
    assert "teacher_accuracy" not in first and 0 <= second["teacher_accuracy"] <= 1
    assert second["pretraining_accuracy"] == first["val_accuracy"]
    teacher, student = training.method.teacher.state()["stem_bn.running_mean"], training.method.network.stem_bn
    assert torch.equal(teacher, student.running_mean) == ("teacher_bn" not in option)


ITERATIONS, EVERY, NEIGHBOURS = 14, 2, 5
PRETRAINING = 6  # three evaluations
RAMP = 7
DECAY = 0.9998 ** (50_000 / ITERATIONS)


def binary(z: Tensor, target: Tensor) -> Tensor:
    return -(target * F.logsigmoid(z) + (1 - target) * F.logsigmoid(-z))


class TaughtOracle(Oracle):
    """Student and averaged teacher, and what the teacher last said of every record of the pool."""

    features: Tensor | None = None
    scores: Tensor | None = None

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self.others = {"teacher": self.snapshot()}  # no part of the model

    def snapshot(self) -> Probe:
        return copy.deepcopy(self.network).requires_grad_(False).eval()

    def overwrite(self, positions: Tensor, features: Tensor, scores: Tensor) -> None:
        for position, feature, score in zip(positions.tolist(), features, scores, strict=True):
            self.features[position], self.scores[position] = feature, score

    def neighbours(self, queries: Tensor, without: Tensor | None) -> list[list[int]]:
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
        row = super().evaluate(n)
        if self.features is not None:
            row["teacher_accuracy"] = self.right(self.others["teacher"](self.x_v))
        return row

    def memory(self) -> dict[str, Any]:
        bank = None if self.features is None else {"features": self.features, "scores": self.scores}
        return {"teacher": self.others["teacher"].state_dict(), "bank": bank}


class PaperOracle(TaughtOracle):
    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self.others["best"] = self.snapshot()
        self.best_accuracy, self.best_moment = -1.0, 0
        self.labels_per_class = training.labelled.labels.bincount(minlength=CLASSES)

    def predict(self, x: Tensor) -> Said:
        """Sigmoids divided by their sum."""
        s = torch.sigmoid(self.network(x))
        return {"main": ((s / s.sum(dim=1, keepdim=True)).log(), None)}

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


def new(tagged: Tagged, protocol: str, seed: int) -> Training:
    switches = {"pretraining": 20_000} if protocol == "paper" else {}
    return tagged(
        "ecgmatch", protocol, ITERATIONS, EVERY, seed=seed, learning_rate=0.05, switches=switches, warm_up=RAMP,
        hyper={"ema_decay": 0.9998, "neighbours": NEIGHBOURS},
    )  # fmt: skip


@pytest.mark.usefixtures("unit_features")
@pytest.mark.parametrize(("seed", "start"), [(8, 2), (1, 4), (9, 6)])
def test_paper(tagged: Tagged, seed: int, start: int) -> None:
    """Seeds whose pre-training is best at its first, second and third evaluation; later ones tie with the first two."""
    training = new(tagged, "paper", seed)
    oracle = PaperOracle(training)
    follow(training, oracle)
    assert oracle.best_moment == start
    assert training.best.iteration > PRETRAINING


@pytest.mark.usefixtures("unit_features")
def test_release(tagged: Tagged) -> None:
    training = new(tagged, "release", 1)
    oracle = ReleaseOracle(training)
    follow(training, oracle)
    teacher, student = oracle.others["teacher"], oracle.network
    assert not teacher.norm.running_mean.any() and student.norm.running_mean.any()
    assert len(oracle.features) == POOL
