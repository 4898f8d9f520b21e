"""Whole iterations of SafeStudent, by the specification."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from safeecgmatch.engine.loop import Row, Training
from safeecgmatch.methods.safestudent.step import step
from tests.methods.harness import hyper_of, switches_of
from tests.methods.oracle import Drawn, Expected, Oracle, Probe, close, cross_entropy, follow, noise_sets, strong, weak

ITERATIONS, EVERY, CLASSES = 32, 2, 3
BATCH = 11  # both percentiles are values of the batch: only strictly larger and smaller ones count
PHASE_ONE = 6  # three of sixteen evaluations
ROUND_ENDS = (14, 22)  # after four and eight of the other thirteen evaluations
TEACHER_MOMENTS = (12, 18, 24, 30)  # every fifth of the budget, but not in phase one
DECAY = 0.9998 ** (50_000 / ITERATIONS)
RATIO = 0.9  # of unseen records, as a threshold


def energy(t: Tensor, temperature: float) -> Tensor:
    e = (t / temperature).exp()
    rest = e.sum(dim=1) - e.max(dim=1).values + 1e-5
    return temperature * e.sum(dim=1).log() - temperature * rest.log()


class SafeStudentOracle(Oracle):
    network: Probe

    def __init__(self, training: Training, protocol: str) -> None:
        super().__init__(training)
        self.paper = protocol == "paper"
        self.must_beat_early = not self.paper
        self.network = self.adopt(training.method.network)
        self.others = {"teacher": self.snapshot(), "best": self.snapshot()}  # no part of the model
        self.best_accuracy, self.best_moment = -1.0, 0
        self.best_adam: dict[str, Any] | None = None
        self.taken: list[int] = []  # the moments of the students that became teachers
        self.start_adam()

    def snapshot(self) -> Probe:
        return copy.deepcopy(self.network).requires_grad_(False).eval()

    def iterate(self, n: int, drawn: Drawn) -> Expected:
        if n < PHASE_ONE:
            supervised = cross_entropy(self.network(weak(drawn.x_l)), drawn.y_l).mean()
            self.descend(supervised)
            nothing = torch.zeros(BATCH, dtype=torch.int64)
            return Expected(supervised, {"supervised": supervised}, nothing.bool(), nothing)
        with torch.no_grad():
            t = self.others["teacher"](drawn.x_u if self.paper else weak(drawn.x_u))
        z_l, s = self.network(torch.cat([weak(drawn.x_l), strong(drawn.x_u)])).split(BATCH)
        ed = energy(t, 10.0 if self.paper else 1.0)
        order = ed.sort().values
        seen, unseen = (ed > order[6], ed < order[1]) if self.paper else (ed > RATIO, ed < RATIO - 0.1)
        (seen_rows,), (unseen_rows,) = seen.nonzero(as_tuple=True), unseen.nonzero(as_tuple=True)
        hard = cross_entropy(s, t.argmax(dim=1))[seen_rows].sum() / max(len(seen_rows), 1)
        p, log_s = t.softmax(dim=1), s.log_softmax(dim=1)
        soft = (p * (p.log() - log_s)).sum(dim=1)[seen_rows].sum()
        uniform = -math.log(CLASSES) - log_s.sum(dim=1)[unseen_rows] / CLASSES
        if not self.paper and len(unseen_rows):
            largest = ed[unseen_rows].max()
            uniform = uniform * ((largest - ed[unseen_rows]) / (largest + 1e-10)).exp()
        terms = {
            "supervised": cross_entropy(z_l, drawn.y_l).mean(),
            "hard": hard,
            "soft": soft / (BATCH if self.paper else max(len(seen_rows), 1)),
            "uniform": uniform.sum() / (BATCH if self.paper else max(len(unseen_rows), 1)),
        }
        seen_weight, uniform_weight = (0.3, 0.05) if self.paper else (1.0, 0.01)
        total = terms["supervised"] + seen_weight * (hard + terms["soft"]) + uniform_weight * terms["uniform"]
        self.descend(total)
        if not self.paper and n + 1 in TEACHER_MOMENTS:
            pairs = zip(self.others["teacher"].parameters(), self.network.parameters(), strict=True)
            for mine, theirs in pairs:
                mine.copy_(DECAY * mine + (1 - DECAY) * theirs.detach())
        return Expected(total, terms, seen, t.argmax(dim=1))

    def evaluate(self, n: int) -> Row:
        return {"val_accuracy": self.accuracy(self.network), "competes": int(n > PHASE_ONE)}

    def after_evaluation(self, n: int, row: Row) -> None:
        if row["val_accuracy"] > self.best_accuracy:
            self.best_accuracy, self.others["best"], self.best_moment = row["val_accuracy"], self.snapshot(), n
            if not self.paper and n <= PHASE_ONE:
                self.best_adam = copy.deepcopy(self.adam.state_dict())
        if n == PHASE_ONE:
            self.network.load_state_dict(self.others["best"].state_dict())
        if n == PHASE_ONE or (self.paper and n in ROUND_ENDS):
            self.others["teacher"] = copy.deepcopy(self.others["best"])
            self.taken.append(self.best_moment)
            if self.paper:
                self.start_adam()
            elif self.best_adam is not None:
                self.adam.load_state_dict(self.best_adam)
        if n == PHASE_ONE:
            self.best_accuracy, self.best_adam = -1.0, None

    def memory(self) -> dict[str, Any]:
        best: dict[str, Any] = {"accuracy": self.best_accuracy, "weights": self.others["best"].state_dict()}
        moments = self.best_adam["state"] if self.best_adam else {}
        best["optimizer"] = (
            {"state": {j: {"exp_avg": one["exp_avg"]} for j, one in moments.items()}} if moments else None
        )
        return {"teacher": self.others["teacher"].state_dict(), "best": best}


@pytest.mark.parametrize(
    ("protocol", "seed", "teachers", "kept"),
    [("paper", 4, [4, 10, 18], 18), ("release", 1, [2], 32), ("release", 14, [2], None)],
)
def test_safestudent(tagged: Any, protocol: str, seed: int, teachers: list[int], kept: int | None) -> None:
    """Seeds whose best students are not the last ones; under the last no student beats the supervised phase."""
    training = tagged(
        "safestudent", protocol, ITERATIONS, EVERY, learning_rate=0.05, batch=BATCH, ood_level=90, seed=seed,
        hyper={"teacher_decay": 0.9998}, sets=noise_sets(),
    )  # fmt: skip
    oracle = SafeStudentOracle(training, protocol)
    done = follow(training, oracle)
    assert oracle.taken == teachers
    assert (training.best.iteration if training.best else None) == kept
    assert any(one.terms["uniform"].item() > 0 for one in done[PHASE_ONE:])
    accepted = torch.cat([one.accepted for one in done[PHASE_ONE:]])  # type: ignore[misc]
    assert bool(accepted.any()) and not bool(accepted.all())
    oracle.eval()
    z = oracle.network(oracle.x_v)
    (prediction,) = training.method.predict(training.method.validate_now(ITERATIONS).outputs).values()
    close(prediction.log_probs, z.log_softmax(dim=1), "prediction")
    close(prediction.ood_score, -energy(z, 10.0 if protocol == "paper" else 1.0), "the student's own discrepancy")


def test_a_discrepancy_equal_to_an_absolute_threshold_is_ignored() -> None:
    t, z = torch.randn(2, 40, CLASSES, generator=torch.Generator().manual_seed(0))
    sections = hyper_of("safestudent"), switches_of("safestudent", "release")
    discrepancies = step(z, torch.zeros(40, dtype=torch.int64), t, z, RATIO, *sections).ed.double()
    row = next(j for j, ed in enumerate(discrepancies.tolist()) if (ed + 0.1) - 0.1 == ed)
    for ratio in (float(discrepancies[row]), float(discrepancies[row]) + 0.1):
        result = step(z, torch.zeros(40, dtype=torch.int64), t, z, ratio, *sections)
        assert bool(result.seen.any()) and bool(result.unseen.any())
        assert not (result.seen | result.unseen)[row]
