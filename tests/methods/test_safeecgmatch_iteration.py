"""Whole iterations of SafeECGMatch and all its variants, by the specification."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from safeecgmatch.engine.loop import Row, Training
from safeecgmatch.methods.parts import temperature
from safeecgmatch.methods.safeecgmatch.variants import VARIANTS
from tests.methods.oracle import BATCH, Drawn, Expected, Oracle, close, follow, mask_band, strong, weak
from tests.methods.test_calimatch_iteration import EVERY, ITERATIONS, START, BranchOracle, Reading
from tests.methods.test_openmatch_iteration import CLASSES

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
        super().__init__(training)
        method: Any = training.method
        self.start, self.hyper, initial = start, EAGER | hyper, hyper.get("initial_temperature", 1.5)
        self.protocol, self.variant, self.lambda_sum = protocol, variant, lambda_sum
        reading = READINGS[protocol]
        if variant.startswith("learned") and protocol == "paper":
            reading = replace(reading, temperatures="clamped", tempered_look_up=False)
        self.names = ("time", "freq") if lambda_sum else ("time",)
        for name in self.names:
            calibrated = name not in UNCALIBRATED.get(variant, ())
            setattr(self, name, BranchOracle(self.adopt(getattr(method, name)), reading, calibrated, initial))
        self.start_adam()

    def branch(self, name: str) -> BranchOracle:
        branch = getattr(self, name)
        assert isinstance(branch, BranchOracle)
        return branch

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
            judged = dict.fromkeys(judged, together)  # type: ignore[arg-type]
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

    @torch.no_grad()
    def predictions(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Class probabilities and unseen scores of the validation records by branch."""
        self.eval()
        found = {name: self.branch(name).scores(*self.branch(name)(self.seen(name, self.x_v))) for name in self.names}
        self.train()
        if len(found) == 2:
            found["fused"] = tuple(sum(parts) / 2 for parts in zip(*found.values(), strict=True))  # type: ignore
        return {name: (p, 1 - s) for name, (p, s) in found.items()}

    def accuracies(self) -> dict[str, float]:
        return {name: float((p.argmax(1) == self.y_v).double().mean()) for name, (p, _) in self.predictions().items()}

    def evaluate(self, n: int) -> Row:
        self.calibrate()
        reported = "fused" if self.protocol == "paper" and self.lambda_sum else "time"
        row: Row = {"val_accuracy": self.accuracies()[reported]}
        for name in self.names:
            row |= self.branch(name).temperatures(name)
        self.told_apart |= len(set(self.accuracies().values())) > 1
        return row

    told_apart = False  # whether it ever mattered which branch is reported


CASES = [(variant, 1.0, {}) for variant in VARIANTS] + [("full", 0.0, {}), ("full", 3.0, {})]
CASES += [("learned_t", 1.0, {"initial_temperature": 6.0})]  # for the clamp
CASES += [("learned_t", 1.0, {"initial_temperature": 0.1, "inlier_threshold": 0.6})]


@pytest.mark.parametrize(("variant", "lambda_sum", "hyper"), CASES)
@pytest.mark.parametrize("protocol", ["paper", "release"])
def test_safeecgmatch(
    tagged: Any,
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
    taken = [int(one.accepted.sum()) for one in done]  # type: ignore[union-attr]
    assert sum(taken[:START]) == 0 < sum(taken[START:]) < BATCH * (ITERATIONS - START)
    assert any(one.rates.get("mask_rate.freq", 0) > 0 for one in done) == bool(lambda_sum) or hyper
    assert oracle.told_apart == bool(lambda_sum)
    found = training.method.predict(training.method.validate_now(ITERATIONS).outputs)
    given = {name: (prediction.log_probs.exp(), prediction.ood_score) for name, prediction in found.items()}
    assert given.keys() == oracle.predictions().keys()
    close(given, oracle.predictions(), "predictions", 1e-6)


@pytest.mark.parametrize("on", ["inlier_threshold", "confidence_threshold"])
@pytest.mark.parametrize("protocol", ["paper", "release"])
def test_a_record_on_a_threshold(tagged: Any, protocol: str, on: str) -> None:
    """Not accepted where the paper's inequalities are strict; without temperatures, so that it lies there exactly."""

    def at_once(hyper: dict[str, float]) -> Training:
        training = tagged(
            "safeecgmatch", protocol, 2, 1, variant="no_cal", lambda_sum=1.0, hyper=hyper, switches={"start": 0}
        )
        with torch.no_grad():
            for name in ("time", "freq"):
                getattr(training.method, name).ova.weight[CLASSES:] += 0.3  # inliers
        return training

    hyper = {"inlier_threshold": 0.0, "confidence_threshold": 0.0}
    training = at_once(hyper)
    oracle = SafeECGMatchOracle(training, protocol, "no_cal", 1.0, start=0, **hyper)
    batch = training.draw()[0]
    z, o = oracle.branch("time")(oracle.views("time", Drawn(batch.x_l, batch.y_l, batch.x_u, batch.position_u)))
    p, s = oracle.branch("time").scores(z[BATCH : 2 * BATCH], o[BATCH : 2 * BATCH])
    value = {"inlier_threshold": s, "confidence_threshold": p.max(dim=1).values}[on].max().item()
    training = at_once(hyper | {on: value})
    oracle = SafeECGMatchOracle(training, protocol, "no_cal", 1.0, start=0, **(hyper | {on: value}))
    done = follow(training, oracle)
    assert done[0].accepted is not None and int(done[0].accepted.sum()) == (protocol == "release")
