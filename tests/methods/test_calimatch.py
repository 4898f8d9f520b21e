"""CaliMatch: golden values, and whole iterations by the specification; SafeECGMatch's tests use the same branch."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from safeecgmatch.engine.loop import Row, Training
from safeecgmatch.methods.calimatch.step import Heads, step
from safeecgmatch.methods.parts.branch import Calibration
from safeecgmatch.methods.parts.smoothing import TICKS as ROUNDED_TICKS
from tests.methods.harness import CLASSES, hyper_of, switches_of
from tests.methods.oracle import (
    BATCH,
    Drawn,
    Expected,
    Oracle,
    Said,
    Tagged,
    cross_entropy,
    first_drawn,
    follow,
    one_vs_all,
    pairs,
    strong,
    taken,
    weak,
)
from tests.methods.parts.test_calibration import GOLDEN, RELATIVE, golden_inputs
from tests.methods.test_openmatch import consistency


def test_terms_and_total_of_a_step_equal_the_golden_values() -> None:
    """The golden total takes its calibration terms at T = 1.5 and its mask at T = 0.5, hence two steps."""
    g, hyper, release = golden_inputs(), hyper_of("calimatch"), switches_of("calimatch", "release")
    heads = Heads(z_l=g["Z"], o_l=g["O1"], z_1=g["Z"], o_1=g["O1"], o_2=g["O2"], z_s=g["strong"])
    table = torch.tensor([min(1.0, max(0.0, 0.9 * tick + 0.01)) for tick in ROUNDED_TICKS[:-1]], dtype=torch.float64)
    warm_t, cool_t = torch.tensor(1.5), torch.tensor(0.5)
    warm = step(g["y"], heads, Calibration(warm_t, warm_t, table, table), hyper, release, late=True)
    names = {"cls": "L_cls", "ood": "L_ood", "socr": "L_socr(O1,O2)"}
    names |= {"cls_cal": "L_cls_cal(T=1.5,tableB)", "ood_cal": "L_ood_cal(T=1.5,tableB)"}
    for term, key in names.items():
        assert warm.terms[term].item() == pytest.approx(GOLDEN[key], rel=RELATIVE)
    loose = hyper_of("calimatch", inlier_threshold=0.5, confidence_threshold=0.6)
    cool = step(g["y"], heads, Calibration(cool_t, cool_t, table, table), loose, release, late=True)
    assert cool.accepted.tolist() == GOLDEN["selection_T=0.5"]["mask_pi0.5_tau0.6"]
    assert cool.pseudo.tolist() == GOLDEN["selection_T=0.5"]["pseudo"]
    assert cool.terms["fix"].item() == pytest.approx(GOLDEN["L_fix(strong,mask_pi0.5_tau0.6)"], rel=RELATIVE)
    assert not warm.accepted.any()
    total = warm.total + loose.lambda_fix * cool.terms["fix"]
    assert total.item() == pytest.approx(GOLDEN["branch_total_default_lambdas"], rel=RELATIVE)


START, EVERY, ITERATIONS = 4, 3, 12
EAGER = {"inlier_threshold": 0.5, "confidence_threshold": 0.55}
TICKS = [round(j / 30, 2) for j in range(30)] + [1.0]


@dataclass(frozen=True)
class Reading:
    """What the protocols and variants disagree about."""

    temperatures: str  # "free" (by gradient), "clamped" (by gradient, to [0.2, 5]) or "fitted" (on validation)
    tempered_look_up: bool
    strict: bool
    over_batch: bool


def table(confidence: Tensor, right: Tensor) -> Tensor:
    values = []
    for j in range(30):
        inside = right[(confidence > j / 30) & (confidence <= (j + 1) / 30)].double()
        values.append(inside.mean() if len(inside) else torch.tensor(torch.nan))
    return torch.stack(values)


def looked_up(confidence: Tensor, entries: Tensor, floor: float) -> Tensor:
    targets = []
    for c in confidence.detach().tolist():
        j = next(j for j in range(30) if TICKS[j] < c <= TICKS[j + 1])
        entry = float(entries[j])
        targets.append(c if entry != entry else max(min(max(entry, TICKS[j]), TICKS[j + 1]), floor))
    return torch.tensor(targets)


def fitted(wrong: Tensor, weight: Tensor) -> float:
    """The T in [0.2, 5] that minimises sum weight * log sum exp(wrong / T), by bisection of the slope in 1/T."""
    low, high = 1 / 5.0, 1 / 0.2
    for _ in range(45):
        inverse = torch.tensor((low + high) / 2, requires_grad=True)
        ((wrong * inverse).logsumexp(dim=-1) * weight).sum().backward()
        low, high = (low, inverse.item()) if inverse.grad > 0 else (inverse.item(), high)
    return 2 / (low + high)


class BranchOracle(nn.Module):
    def __init__(self, branch: Any, reading: Reading, calibrated: bool, initial: float) -> None:
        super().__init__()
        self.reading, self.calibrated = reading, calibrated
        self.network, self.ova = copy.deepcopy(branch.network), copy.deepcopy(branch.ova)
        learned = calibrated and reading.temperatures != "fitted"
        self.t_class, self.t_ova = (
            nn.Parameter(torch.tensor(initial if calibrated else 1.0), requires_grad=learned) for _ in range(2)
        )
        for name in ("table_class", "table_ova"):
            self.register_buffer(name, torch.full((30,), torch.nan))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.network.features(x)
        return self.network.fc(features), self.ova(features)

    @torch.no_grad()
    def calibrate(self, x: Tensor, y: Tensor) -> None:
        """Temperatures, where they are fitted, and tables from the raw validation records."""
        if not self.calibrated:
            return
        self.eval()
        z, o = self(x)
        self.train()
        if self.reading.temperatures == "fitted":
            rows, gaps = torch.arange(len(y)), o[:, CLASSES:] - o[:, :CLASSES]
            gaps[rows, y] *= -1
            share = torch.full_like(gaps, 1 / (CLASSES - 1)).index_put((rows, y), torch.tensor(1.0))
            with torch.enable_grad():
                self.t_class.fill_(fitted(z - z[rows, y][:, None], torch.ones(len(y))))
                self.t_ova.fill_(fitted(torch.stack([torch.zeros_like(gaps), gaps], dim=-1), share))
        for confidences, entries in (
            ((z / self.t_class).softmax(dim=1), self.table_class),
            (pairs(o / self.t_ova)[1], self.table_ova),
        ):
            c, k = confidences.max(dim=1)
            entries.copy_(table(c, k == y))

    @torch.no_grad()
    def scores(self, z: Tensor, o: Tensor) -> tuple[Tensor, Tensor]:
        """Tempered class probabilities and S."""
        p = (z / self.t_class).softmax(dim=1)
        return p, (p * pairs(o / self.t_ova)[1]).sum(dim=1)

    def selected(self, p: Tensor, s: Tensor, hyper: dict[str, float]) -> Tensor:
        t1, t2, confidence = hyper["inlier_threshold"], hyper["confidence_threshold"], p.max(dim=1).values
        if self.reading.strict:
            return (s > t1) & (confidence > t2)
        return (torch.maximum(s, 1 - s) >= t1) & (s > 1 - s) & (confidence >= t2)

    def terms(
        self, z: Tensor, o: Tensor, y: Tensor, late: bool, accepted: Tensor, pseudo: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Rows: labelled, first weak, second weak, strong views."""
        z_l, o_l, z_s = z[:BATCH], o[:BATCH], z[3 * BATCH :]
        terms = {
            "cls": cross_entropy(z_l, y).mean(),
            "ood": one_vs_all(o_l, y),
            "socr": consistency(o[BATCH : 2 * BATCH], o[2 * BATCH : 3 * BATCH]),
            "cls_cal": torch.zeros(()),
            "ood_cal": torch.zeros(()),
            "fix": torch.zeros(()),
        }
        true = torch.arange(CLASSES) == y[:, None]
        if late and self.calibrated:
            at = self.reading.tempered_look_up
            c_class = (z_l / (self.t_class if at else 1)).softmax(dim=1).max(dim=1).values
            c_ova = pairs(o_l / (self.t_ova if at else 1))[1].max(dim=1).values
            alpha = looked_up(c_class, self.table_class, 1 / CLASSES)[:, None]
            beta = looked_up(c_ova, self.table_ova, 0.5)[:, None]
            tau, s = torch.where(true, alpha, (1 - alpha) / (CLASSES - 1)), torch.where(true, beta, 1 - beta)
            p, (outlier, inlier) = (z_l / self.t_class).softmax(dim=1), pairs(o_l / self.t_ova)
            terms["cls_cal"] = -(tau * (p + 1e-5).log()).sum(dim=1).mean()
            terms["ood_cal"] = -(s * (inlier + 1e-8).log()).sum(dim=1).mean()
            terms["ood_cal"] = terms["ood_cal"] + (-(1 - s) * (outlier + 1e-8).log()).max(dim=1).values.mean()
        if late:
            count = BATCH if self.reading.over_batch else max(int(accepted.sum()), 1)
            terms["fix"] = (cross_entropy(z_s, pseudo) * accepted).sum() / count
        halves = terms["ood"] + terms["socr"] + terms["ood_cal"]
        return terms["cls"] + terms["cls_cal"] + 0.5 * halves + terms["fix"], terms

    @torch.no_grad()
    def clamp(self) -> None:
        if self.reading.temperatures == "clamped":
            self.t_class.clamp_(0.2, 5.0)
            self.t_ova.clamp_(0.2, 5.0)

    def temperatures(self, name: str) -> Row:
        return {f"temperature.class.{name}": self.t_class.item(), f"temperature.ova.{name}": self.t_ova.item()}


READINGS = {
    "paper": Reading("clamped", tempered_look_up=False, strict=True, over_batch=True),
    "release": Reading("free", tempered_look_up=False, strict=False, over_batch=False),
}


class CaliMatchOracle(Oracle):
    def __init__(
        self, training: Training, protocol: str, initial: float, hyper: dict[str, float], start: int = START
    ) -> None:
        self.protocol, self.initial = protocol, initial
        super().__init__(training)
        self.start, self.hyper = start, hyper

    def adopt(self, method: Any) -> None:
        self.branch = BranchOracle(method.branch, READINGS[self.protocol], True, self.initial)

    def iterate(self, n: int, drawn: Drawn) -> Expected:
        if n == self.start:
            self.branch.calibrate(self.x_v, self.y_v)
        z, o = self.branch(torch.cat([weak(drawn.x_l), weak(drawn.x_u), weak(drawn.x_u, 1), strong(drawn.x_u)]))
        p, s = self.branch.scores(z[BATCH : 2 * BATCH], o[BATCH : 2 * BATCH])
        accepted, pseudo = self.branch.selected(p, s, self.hyper) & (n >= self.start), p.argmax(dim=1)
        total, terms = self.branch.terms(z, o, drawn.y_l, n >= self.start, accepted, pseudo)
        self.descend(total)
        self.branch.clamp()
        return Expected(total, terms, accepted, pseudo)

    def predict(self, x: Tensor) -> Said:
        p, s = self.branch.scores(*self.branch(x))
        return {"main": (p.log(), 1 - s)}

    def evaluate(self, n: int) -> Row:
        self.branch.calibrate(self.x_v, self.y_v)
        return super().evaluate(n) | self.branch.temperatures("main")


@pytest.mark.parametrize("initial", [0.1, 1.5, 6.0])
@pytest.mark.parametrize("protocol", ["paper", "release"])
def test_calimatch(tagged: Tagged, protocol: str, initial: float) -> None:
    """Temperatures that start outside of their range show the clamp."""
    hyper = EAGER if initial < 2 else {"inlier_threshold": 0.4, "confidence_threshold": 0.38}
    changes = hyper if initial == 1.5 else hyper | {"initial_temperature": initial}
    switches = {} if protocol == "paper" else {"start": 16_500}
    training = tagged(
        "calimatch", protocol, ITERATIONS, EVERY, warm_up=START, learning_rate=0.03, hyper=changes, switches=switches
    )
    accepted = taken(follow(training, CaliMatchOracle(training, protocol, initial, hyper)))
    assert sum(accepted[:START]) == 0 < sum(accepted[START:]) < BATCH * (ITERATIONS - START)


@pytest.mark.parametrize("on", ["inlier_threshold", "confidence_threshold"])
@pytest.mark.parametrize("protocol", ["paper", "release"])
def test_a_record_on_a_threshold(tagged: Tagged, protocol: str, on: str) -> None:
    """The boldest record, or the one most like an inlier: the published code alone accepts it. The other one is 0."""

    def at_once(hyper: dict[str, float]) -> tuple[Training, CaliMatchOracle]:
        switches = {"start": 0}
        training = tagged("calimatch", protocol, 2, 1, learning_rate=0.03, hyper=hyper, switches=switches)
        with torch.no_grad():
            training.method.branch.ova.weight[CLASSES:] += 0.3  # inliers
        return training, CaliMatchOracle(training, protocol, 1.5, hyper, start=0)

    hyper = {"inlier_threshold": 0.0, "confidence_threshold": 0.0}
    rehearsal, oracle = at_once(hyper)
    drawn = first_drawn(rehearsal)
    z, o = oracle.branch(torch.cat([weak(drawn.x_l), weak(drawn.x_u), weak(drawn.x_u, 1), strong(drawn.x_u)]))
    p, s = oracle.branch.scores(z[BATCH : 2 * BATCH], o[BATCH : 2 * BATCH])
    value = {"inlier_threshold": s, "confidence_threshold": p.max(dim=1).values}[on].max().item()
    done = follow(*at_once(hyper | {on: value}))
    assert taken(done)[0] == (protocol == "release")
