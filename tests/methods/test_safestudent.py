"""SafeStudent: energy discrepancy, who is seen and unseen, phases, and whole iterations by the specification."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from safeecgmatch.engine.loop import Row, Training
from safeecgmatch.methods.safestudent.energy import energy_discrepancy
from safeecgmatch.methods.safestudent.step import Step, step
from tests.methods.harness import CLASSES, hyper_of, switches_of, toy_training
from tests.methods.oracle import (
    Drawn,
    Expected,
    Oracle,
    Probe,
    Said,
    Tagged,
    cross_entropy,
    follow,
    strong,
    tagged_sets,
    weak,
)
from tests.vectors import double, load_vector

VECTOR = load_vector("safestudent_ed")
LABELLED = torch.tensor([[1.0, 0, 0], [0, 1.0, 0]], dtype=torch.float64)
LABELS = torch.tensor([0, 2])


def random_logits(rows: int, seed: int, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def phase_two(protocol: str, t: Tensor, s: Tensor, ood_ratio: float = 0.6) -> Step:
    return step(LABELLED, LABELS, t, s, ood_ratio, hyper_of("safestudent"), switches_of("safestudent", protocol))


@pytest.mark.parametrize("case", VECTOR["values"])
def test_energy_discrepancy_vector(case: dict) -> None:
    ed = energy_discrepancy(double(VECTOR["logits"]), case["T"])
    torch.testing.assert_close(ed, double(case["ed"]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", VECTOR["masks_T1"])
def test_absolute_masks_vector(case: dict) -> None:
    logits = double(VECTOR["logits"])
    result = phase_two("release", logits, logits, case["tau"])
    assert result.seen.tolist() == case["seen"]
    assert result.unseen.tolist() == case["unseen"]


def test_release_at_threshold_0_3_calls_no_record_unseen_and_paper_some() -> None:
    """Three classes: ED = -ln(1 - p_max) >= ln 1.5 = 0.405 while `unseen` would ask for ED < 0.2."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.logspace(-3, 1.2, 4000, dtype=torch.float64)[:, None]
    t = spread * torch.randn(4000, 3, generator=generator, dtype=torch.float64).clamp(-0.6, 2.0)
    t = torch.cat([t, torch.zeros(1, 3, dtype=torch.float64)])
    exact = -torch.log1p(-t.softmax(1).amax(1))
    assert exact.min().item() == pytest.approx(math.log(1.5), abs=1e-12)
    # The 1e-5 inside the logarithm takes a little, but could reach 0.2 only if all logits were below -10.7.
    assert energy_discrepancy(t.clamp(min=-5.0), 1.0).min().item() >= math.log(1.5) - 1e-3
    release = phase_two("release", t, t, 0.3)
    assert not release.unseen.any() and release.seen.all()
    assert release.terms["uniform"].item() == 0.0
    paper = phase_two("paper", t, t, 0.3)
    assert paper.unseen.any() and paper.terms["uniform"].item() > 0.0


def test_percentiles_give_13_seen_4_unseen_15_ignored_whatever_the_ood_ratio() -> None:
    t, s = random_logits(32, 1), random_logits(32, 2)
    for ratio in (0.3, 0.6):
        result = phase_two("paper", t, s, ratio)
        assert int(result.seen.sum()) == 13 and int(result.unseen.sum()) == 4
        assert not (result.seen & result.unseen).any()
        assert result.ed[result.seen].min() > result.ed[~result.seen].max()
        assert result.ed[result.unseen].max() < result.ed[~result.unseen].min()


def test_empty_sets_cost_nothing_and_leave_finite_gradients() -> None:
    s = random_logits(4, 7).requires_grad_()
    nobody_seen = phase_two("release", torch.zeros(4, 3, dtype=torch.float64), s, 0.6)
    assert not nobody_seen.seen.any()
    assert nobody_seen.terms["hard"].item() == nobody_seen.terms["soft"].item() == 0.0
    nobody_unseen = phase_two("release", 9 * torch.eye(4, 3, dtype=torch.float64) + 3, s, 0.3)
    assert not nobody_unseen.unseen.any() and nobody_unseen.terms["uniform"].item() == 0.0
    (nobody_seen.total + nobody_unseen.total).backward()
    assert bool(torch.isfinite(s.grad).all())


@pytest.mark.parametrize(
    ("iterations", "every", "phase_one", "round_ends"),
    [
        (50_000, 1_000, 10_000, {23_000, 36_000}),
        (2_000, 200, 400, {800, 1_400}),
        (1500, 100, 300, {700, 1_100}),  # the last evaluation after half an interval
        (150, 50, 50, {100}),
        (100, 50, 50, set()),
        (50, 50, 50, set()),
    ],
)
def test_phases_and_rounds(iterations: int, every: int, phase_one: int, round_ends: set[int]) -> None:
    method = toy_training("safestudent", "paper", iterations, every).method
    assert method.phase_one == phase_one
    assert method.round_ends == round_ends
    assert not method.competes(phase_one) and method.competes(phase_one + every)


def test_a_discrepancy_equal_to_an_absolute_threshold_is_ignored() -> None:
    t, z = torch.randn(2, 40, CLASSES, generator=torch.Generator().manual_seed(0))
    discrepancies = phase_two("release", t, z, RATIO).ed.double()
    row = next(j for j, ed in enumerate(discrepancies.tolist()) if (ed + 0.1) - 0.1 == ed)
    for ratio in (float(discrepancies[row]), float(discrepancies[row]) + 0.1):
        result = phase_two("release", t, z, ratio)
        assert bool(result.seen.any()) and bool(result.unseen.any())
        assert not (result.seen | result.unseen)[row]


ITERATIONS, EVERY = 32, 2
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
    def __init__(self, training: Training, protocol: str) -> None:
        super().__init__(training)
        self.paper = protocol == "paper"
        self.must_beat_early = not self.paper
        self.others = {"teacher": self.snapshot(), "best": self.snapshot()}  # no part of the model
        self.best_accuracy, self.best_moment = -1.0, 0
        self.best_adam: dict[str, Any] | None = None
        self.taken: list[int] = []  # the moments of the students that became teachers

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

    def predict(self, x: Tensor) -> Said:
        """The unseen score is the student's own discrepancy."""
        z = self.network(x)
        return {"main": (z.log_softmax(dim=1), -energy(z, 10.0 if self.paper else 1.0))}

    def evaluate(self, n: int) -> Row:
        return super().evaluate(n) | {"competes": int(n > PHASE_ONE)}

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
    [("paper", 18, [2, 8, 18], 18), ("release", 10, [4], 24), ("release", 5, [4], None)],
)
def test_safestudent(tagged: Tagged, protocol: str, seed: int, teachers: list[int], kept: int | None) -> None:
    """Seeds whose best students are not the last ones; under the last no student beats the supervised phase."""
    training = tagged(
        "safestudent", protocol, ITERATIONS, EVERY, learning_rate=0.05, batch=BATCH, ood_level=90, seed=seed,
        hyper={"teacher_decay": 0.9998}, sets=tagged_sets(wave=0.0),
    )  # fmt: skip
    oracle = SafeStudentOracle(training, protocol)
    done = follow(training, oracle)
    assert oracle.taken == teachers
    assert (training.best.iteration if training.best else None) == kept
    assert any(one.terms["uniform"].item() > 0 for one in done[PHASE_ONE:])
    accepted = torch.cat([one.accepted for one in done[PHASE_ONE:]])
    assert bool(accepted.any()) and not bool(accepted.all())
