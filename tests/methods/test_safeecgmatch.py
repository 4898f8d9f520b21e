"""SafeECGMatch and all its variants: whole iterations by the specification, and what its runs show."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from safeecgmatch.config import Ablation
from safeecgmatch.engine.contract import Prediction
from safeecgmatch.engine.loop import Row, Training
from safeecgmatch.engine.signals import SignalSet
from safeecgmatch.methods.parts import temperature
from safeecgmatch.methods.safeecgmatch.method import fuse
from safeecgmatch.methods.safeecgmatch.variants import VARIANTS
from safeecgmatch.methods.safeecgmatch.views import log_spectrum
from safeecgmatch.metrics import auroc
from tests.methods.harness import CLASSES, accepted_unseen_share, bits, learn, make_training, run, toy_training
from tests.methods.oracle import (
    BATCH,
    Drawn,
    Expected,
    Oracle,
    Said,
    Tagged,
    first_drawn,
    follow,
    mask_band,
    strong,
    taken,
    weak,
)
from tests.methods.test_calimatch import EVERY, ITERATIONS, START, BranchOracle, Reading

READINGS = {
    "paper": Reading("fitted", tempered_look_up=True, strict=True, over_batch=True),
    "release": Reading("free", tempered_look_up=False, strict=False, over_batch=False),
}
EAGER = {"inlier_threshold": 0.45, "confidence_threshold": 0.45}
UNCALIBRATED = {"no_freq_cal": ("freq",), "learned_no_freq_cal": ("freq",), "no_cal": ("time", "freq")}


def magnitudes(x: Tensor) -> Tensor:
    return torch.fft.rfft(x).abs()


def standardised_logarithm(x: Tensor) -> Tensor:
    y = (1 + magnitudes(x)).log()
    flat = y.flatten(1)
    mean, variance = flat.mean(dim=1), flat.var(dim=1, correction=0)
    return (y - mean[:, None, None]) / variance.sqrt()[:, None, None]


class SafeECGMatchOracle(Oracle):
    def __init__(
        self, training: Training, protocol: str, variant: str, lambda_sum: float, start: int = START, **hyper: Any
    ) -> None:
        self.start, self.hyper, self.initial = start, EAGER | hyper, hyper.get("initial_temperature", 1.5)
        self.protocol, self.variant, self.lambda_sum = protocol, variant, lambda_sum
        self.names = ("time", "freq") if lambda_sum else ("time",)
        super().__init__(training)

    def adopt(self, method: Any) -> None:
        reading = READINGS[self.protocol]
        if self.variant.startswith("learned") and self.protocol == "paper":
            reading = replace(reading, temperatures="clamped", tempered_look_up=False)
        for name in self.names:
            calibrated = name not in UNCALIBRATED.get(self.variant, ())
            setattr(self, name, BranchOracle(getattr(method, name), reading, calibrated, self.initial))

    def branch(self, name: str) -> BranchOracle:
        return getattr(self, name)

    def seen(self, name: str, x: Tensor) -> Tensor:
        """What a branch sees of un-augmented or weakly augmented signals."""
        if name == "time" or self.variant.endswith("two_time"):
            return x
        return standardised_logarithm(x) if self.variant == "log_spectrum" else magnitudes(x)

    def views(self, name: str, drawn: Drawn) -> Tensor:
        x_l, x_u = drawn.x_l, drawn.x_u
        if name == "freq" and self.variant.endswith("two_time"):  # views of its own
            return torch.cat([weak(x_l, 1), weak(x_u, 2), weak(x_u, 3), strong(x_u, 1)])
        weakly = [self.seen(name, x) for x in (weak(x_l), weak(x_u), weak(x_u, 1))]
        return torch.cat([*weakly, strong(x_u) if name == "time" else mask_band(weakly[1])])

    def calibrate(self) -> None:
        for name in self.names:
            self.branch(name).calibrate(self.seen(name, self.x_v), self.y_v)
            if self.protocol == "release":
                self.branch(name).table_class.copy_(self.branch("time").table_class)
                self.branch(name).table_ova.copy_(self.branch("time").table_ova)

    def iterate(self, n: int, drawn: Drawn) -> Expected:
        late = n >= self.start
        if n == self.start:
            self.calibrate()
        heads = {name: self.branch(name)(self.views(name, drawn)) for name in self.names}
        first = slice(BATCH, 2 * BATCH)
        judged = {name: self.branch(name).scores(z[first], o[first]) for name, (z, o) in heads.items()}
        if self.variant == "coupled":
            together = tuple(sum(parts) / len(judged) for parts in zip(*judged.values(), strict=True))
            judged = dict.fromkeys(judged, together)
        total, terms, accepted, pseudo = torch.zeros(()), {}, {}, {}
        for name, (z, o) in heads.items():
            p, s = judged[name]
            accepted[name], pseudo[name] = self.branch(name).selected(p, s, self.hyper) & late, p.argmax(dim=1)
            loss, parts = self.branch(name).terms(z, o, drawn.y_l, late, accepted[name], pseudo[name])
            terms |= {f"{term}.{name}": value for term, value in parts.items()}
            total = total + (loss if name == "time" else self.lambda_sum * loss)
        self.descend(total)
        for name in self.names:
            self.branch(name).clamp()
        rates = {"mask_rate.freq": accepted["freq"].double().mean()} if "freq" in accepted else {}
        return Expected(total, terms, accepted["time"], pseudo["time"], rates=rates)

    def predict(self, x: Tensor) -> Said:
        found = {name: self.branch(name).scores(*self.branch(name)(self.seen(name, x))) for name in self.names}
        if len(found) == 2:
            found["fused"] = tuple(sum(parts) / 2 for parts in zip(*found.values(), strict=True))
        return {name: (p.log(), 1 - s) for name, (p, s) in found.items()}

    def evaluate(self, n: int) -> Row:
        self.calibrate()
        accuracies = {name: self.right(log_probs) for name, (log_probs, _) in self.said().items()}
        reported = "fused" if self.protocol == "paper" and self.lambda_sum else "time"
        row: Row = {"val_accuracy": accuracies[reported], "competes": 1}
        for name in self.names:
            row |= self.branch(name).temperatures(name)
        self.told_apart |= len(set(accuracies.values())) > 1
        return row

    told_apart = False  # whether it ever mattered which branch is reported


CASES = [(variant, 1.0, {}) for variant in VARIANTS] + [("full", 0.0, {}), ("full", 3.0, {})]
CASES += [("learned_t", 1.0, {"initial_temperature": 6.0})]  # for the clamp
CASES += [("learned_t", 1.0, {"initial_temperature": 0.1, "inlier_threshold": 0.6})]


@pytest.mark.parametrize(("variant", "lambda_sum", "hyper"), CASES)
@pytest.mark.parametrize("protocol", ["paper", "release"])
def test_safeecgmatch(
    tagged: Tagged,
    monkeypatch: pytest.MonkeyPatch,
    protocol: str,
    variant: str,
    lambda_sum: float,
    hyper: dict[str, float],
) -> None:
    monkeypatch.setattr(temperature, "TOLERANCE", 1e-12)
    options = {"variant": variant, "lambda_sum": lambda_sum, "warm_up": START, "learning_rate": 0.05}
    switches = {} if protocol == "paper" else {"start": 16_500}
    training = tagged("safeecgmatch", protocol, ITERATIONS, EVERY, switches=switches, hyper=EAGER | hyper, **options)
    oracle = SafeECGMatchOracle(training, protocol, variant, lambda_sum, **hyper)
    done = follow(training, oracle, relative=1e-6)
    accepted = taken(done)
    assert sum(accepted[:START]) == 0 < sum(accepted[START:]) < BATCH * (ITERATIONS - START)
    assert any(one.rates.get("mask_rate.freq", 0) > 0 for one in done) == bool(lambda_sum) or hyper
    assert any(name.endswith(".freq") for name in training.history[-1]) == bool(lambda_sum)
    assert oracle.told_apart == bool(lambda_sum)


@pytest.mark.parametrize("on", ["inlier_threshold", "confidence_threshold"])
@pytest.mark.parametrize("protocol", ["paper", "release"])
def test_a_record_on_a_threshold(tagged: Tagged, protocol: str, on: str) -> None:
    """Not accepted where the paper's inequalities are strict; without temperatures, so that it lies there exactly."""

    def at_once(hyper: dict[str, float]) -> tuple[Training, SafeECGMatchOracle]:
        options = {"variant": "no_cal", "lambda_sum": 1.0, "hyper": hyper, "switches": {"start": 0}}
        training = tagged("safeecgmatch", protocol, 2, 1, **options)
        with torch.no_grad():
            for name in ("time", "freq"):
                getattr(training.method, name).ova.weight[CLASSES:] += 0.3  # inliers
        return training, SafeECGMatchOracle(training, protocol, "no_cal", 1.0, start=0, **hyper)

    hyper = {"inlier_threshold": 0.0, "confidence_threshold": 0.0}
    rehearsal, oracle = at_once(hyper)
    z, o = oracle.branch("time")(oracle.views("time", first_drawn(rehearsal)))
    p, s = oracle.branch("time").scores(z[BATCH : 2 * BATCH], o[BATCH : 2 * BATCH])
    value = {"inlier_threshold": s, "confidence_threshold": p.max(dim=1).values}[on].max().item()
    done = follow(*at_once(hyper | {on: value}))
    assert taken(done)[0] == (protocol == "release")


@pytest.mark.parametrize("variant", VARIANTS)
def test_lambda_sum_reaches_the_time_branch_in_the_coupled_variant_alone(variant: str) -> None:
    """Without its frequency branch (0) nothing is left to be coupled; 1 and 3 differ by Adam's epsilon at most."""
    eager = {"inlier_threshold": 0.5, "confidence_threshold": 0.36}
    options = {"variant": variant, "hyper": eager, "iterations": 8, "seed": 2}
    runs = [run(toy_training("safeecgmatch", "paper", lambda_sum=value, **options)) for value in (0.0, 1.0, 3.0)]
    assert any(row["mask_rate"] > 0 for row in runs[0].history)
    ends = {str(bits(training.method.time.state_dict())) for training in runs}
    assert (len(ends) > 1) == (variant == "coupled")


def test_a_log_spectrum_keeps_the_relation_of_its_leads_and_is_0_where_nothing_is() -> None:
    x = torch.randn(4, 3, 50, generator=torch.Generator().manual_seed(2)) * torch.tensor([1.0, 5.0, 20.0])[:, None]
    assert bool((log_spectrum(x).mean(dim=2).diff(dim=1) > 0).all())  # a larger lead stays larger
    assert torch.equal(log_spectrum(torch.zeros(1, 2, 10)), torch.zeros(1, 2, 6))


def test_the_config_knows_every_variant() -> None:
    names = [name for name in VARIANTS if name != "full"]
    assert Ablation(datasets=["ptbxl"], ood_levels=[60], variants=names, lambda_sum=1.0).variants == names


def test_fusing_saturated_branches_stays_finite() -> None:
    sure = Prediction(torch.tensor([[0.0, -200.0]]), torch.tensor([0.0]))
    other = Prediction(torch.tensor([[-200.0, 0.0]]), torch.tensor([1.0]))
    fused = fuse(sure, other)
    assert fused.log_probs.tolist() == [[pytest.approx(math.log(0.5))] * 2] and fused.ood_score == torch.tensor([0.5])


def late_start(protocol: str, dataset: str, seed: int) -> tuple[Training, dict[str, SignalSet]]:
    """Pseudo-labels and calibration start at 40 % of the budget, of which the paper's 1 % would be too early."""
    methods = {"safeecgmatch": {"switches": {protocol: {"start": 20_000}}}}
    options = {"iterations": 300, "learning_rate": 0.005, "epoch": 15}
    training, sets, _ = make_training("safeecgmatch", protocol, dataset=dataset, seed=seed, methods=methods, **options)
    return training, sets


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["paper", "release"])
def test_fewer_unseen_records_are_accepted_than_the_pool_holds(protocol: str) -> None:
    """Of the mean over four seeds: 0.50 under `paper` (deviation of one seed 0.05), 0.58 under `release` (0.015).

    That is 4 and 2 standard errors below the pool's 0.6. One seed shows nothing, 0.605 was seen under `release`; nor do
    pseudo-labels from the first iterations on, where single seeds gave 0.31 to 0.68.
    """
    shares = []
    for seed in (1, 2, 3, 4):
        training, _ = late_start(protocol, "ptbxl", seed)
        shares.append(accepted_unseen_share(run(training)))
    print(shares)
    assert sum(shares) / len(shares) < 0.6


def scores_at_evaluations(training: Training, open_test: SignalSet, least_accuracy: float) -> list[float]:
    """Train to the end: AUROC of the time branch's score at every evaluation where it classifies so well."""
    method, labels, scores = training.method, open_test.labels, []
    unseen = labels >= training.setting.num_classes

    def judge(_: object) -> None:
        prediction = method.predict(method.outputs_on(open_test))["time"]
        right = (prediction.log_probs.argmax(dim=1) == labels)[~unseen]
        if right.double().mean() > least_accuracy:
            scores.append(auroc(prediction.ood_score.numpy(), unseen.numpy()))

    training.run(lambda _: None, judge)
    return scores


@pytest.mark.slow
def test_the_one_vs_all_score_of_a_branch_that_classifies_well_finds_unseen_classes() -> None:
    """At evaluations with a poor accuracy it does not, which is most of them in trainings as short as the demo's."""
    scores: list[float] = []
    for dataset, seed in product(("ptbxl", "cinc21"), (2, 3)):
        training, sets = late_start("paper", dataset, seed)
        scores += scores_at_evaluations(training, sets["open_test"], least_accuracy=0.85)
    print(len(scores), "AUROC", sum(scores) / len(scores), scores)
    assert len(scores) >= 10 and sum(scores) / len(scores) > 0.6


@pytest.mark.slow
def test_calibration_from_the_start_holds_confidences_at_chance_only_with_tables_read_untempered() -> None:
    """`mixed` clips a target into the bin of the untempered confidence, so that nothing would raise it."""
    confidence = {}
    for axis in ("mixed", "tempered"):
        methods = {"safeecgmatch": {"switches": {"paper": {"smoothing_axis": axis}}}}
        _, training = learn("safeecgmatch", seed=2, methods=methods, learning_rate=0.002)
        logits = training.method.outputs_on(training.validation)["class_logits.time"]
        confidence[axis] = float(logits.softmax(dim=1).amax(dim=1).mean())
    print(confidence)
    assert confidence["mixed"] < 0.42 and confidence["tempered"] > confidence["mixed"] + 0.1
