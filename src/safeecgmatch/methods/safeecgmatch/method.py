"""SafeECGMatch (the paper under study): CaliMatch twice, on the signal and on its spectrum.

    L = L^t + lambda_sum L^f,   L^d as in `calimatch/step.py`                                        Eqs. (18)-(19)

The frequency branch sees |rFFT| of the same weak views; its strong view is the first weak spectrum with a band zeroed
(Eqs. 6-7). Both branches have their own encoder, heads, temperatures, pseudo-labels and mask, and no tensor passes
between them: neither the paper's equations nor the published code couple them. So lambda_sum cannot change the time
branch, and scales the frequency branch's loss only, which Adam cancels but for its epsilon. They are back-propagated
one after the other, which halves the memory.

    prediction: mean of the branches' softmax(z / T_cls); unseen score 1 - mean S       (`release`: the time branch)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from safeecgmatch.engine.contract import Batch, Evaluation, Losses, Outputs, Prediction
from safeecgmatch.engine.views import mask_band, spectrum
from safeecgmatch.methods.base import Context, Method
from safeecgmatch.methods.calimatch.method import four_views, heads_of, new_branch
from safeecgmatch.methods.calimatch.step import CaliMatchHyper, CaliMatchSwitches, step
from safeecgmatch.methods.parts.branch import Branch

REPORTED = {"time": "time", "freq": "freq", "mean_prob": "fused"}
CALIBRATED = {"full": ("time", "freq"), "no_freq_cal": ("time",), "no_cal": ()}  # branches, by ablation variant


class SafeECGMatchSwitches(CaliMatchSwitches):
    smoothing_tables: Literal["own", "shared"]
    prediction: Literal["time", "freq", "mean_prob"]


def spectral_views(views: list[Tensor], generator: Generator) -> list[Tensor]:
    """Spectra of the three weak views (Eq. 6), and that of the first unlabelled one with a band masked (Eq. 7)."""
    labelled, first, second = (spectrum(view) for view in views[:3])
    return [labelled, first, second, mask_band(first, generator)]


def fuse(time: Prediction, freq: Prediction) -> Prediction:
    """The mean of both probabilities, and of both unseen scores."""
    assert time.ood_score is not None and freq.ood_score is not None
    log_mean = torch.logaddexp(time.log_probs, freq.log_probs) - math.log(2.0)
    return Prediction(log_mean, (time.ood_score + freq.ood_score) / 2)


def named(terms: dict[str, Tensor], branch: str) -> dict[str, Tensor]:
    return {f"{term}.{branch}": value for term, value in terms.items()}


class SafeECGMatch(Method[CaliMatchHyper, SafeECGMatchSwitches]):
    Hyper = CaliMatchHyper
    Switches = SafeECGMatchSwitches

    def __init__(self, context: Context[CaliMatchHyper, SafeECGMatchSwitches]) -> None:
        super().__init__(context)
        setting = self.setting
        self.lambda_sum = 1.0 if setting.lambda_sum is None else setting.lambda_sum
        self.start = setting.scaled(self.switches.start)
        # Both encoders, then both heads, as the published code; also for lambda_sum 0, so that the time branch starts
        # from the same weights whatever lambda_sum is.
        networks = [self.make_network() for _ in range(2)]
        ovas = [nn.Linear(network.dim, 2 * setting.num_classes, bias=False) for network in networks]
        time, freq = (
            new_branch(network, ova, self.hyper, self.switches, name in CALIBRATED[setting.variant])
            for name, network, ova in zip(("time", "freq"), networks, ovas, strict=True)
        )
        self.time = time
        self.freq = freq if self.lambda_sum > 0 else None

    def branches(self) -> dict[str, Branch]:
        return {"time": self.time} if self.freq is None else {"time": self.time, "freq": self.freq}

    def before_step(self, n: int) -> None:
        if n == self.start:
            self.after_outputs(self.validate_now(n))

    def losses(self, batch: Batch, n: int) -> Iterator[Losses]:
        views = four_views(batch, self.rng("views"), self.setting.sampling_rate)
        time = self.branch_step(self.time, views, batch.y_l, n)
        yield Losses(time.total, named(time.terms, "time"), time.accepted, time.pseudo)
        if self.freq is not None:
            freq = self.branch_step(self.freq, spectral_views(views, self.rng("bands")), batch.y_l, n)
            assert freq.accepted is not None
            mask_rate = {"mask_rate.freq": freq.accepted.to(freq.total).mean()}
            yield Losses(self.lambda_sum * freq.total, named(freq.terms, "freq"), rates=mask_rate)

    def branch_step(self, branch: Branch, views: list[Tensor], y: Tensor, n: int) -> Losses:
        heads, late = heads_of(branch, views), n >= self.start
        return step(y, heads, branch.calibration(), self.hyper, self.switches, late, branch.calibrated)

    def after_step(self, n: int) -> None:
        for branch in self.branches().values():
            branch.clamp_temperatures()

    def after_outputs(self, evaluation: Evaluation) -> None:
        """Algorithm 1, last line: statistics and temperatures from validation, for the weights as they are now."""
        outputs = evaluation.outputs
        for name, branch in self.branches().items():
            branch.calibrate(outputs[f"class_logits.{name}"], outputs[f"ova_logits.{name}"], evaluation.labels)
            if self.switches.smoothing_tables == "shared":
                branch.copy_tables(self.time)

    def outputs(self, x: Tensor) -> Outputs:
        outputs: Outputs = {}
        for name, branch in self.branches().items():
            z, o = branch(x if name == "time" else spectrum(x))
            outputs |= {f"class_logits.{name}": z, f"ova_logits.{name}": o}
        return outputs

    def predict(self, outputs: Outputs) -> dict[str, Prediction]:
        predictions = {
            name: Prediction(*branch.predict(outputs[f"class_logits.{name}"], outputs[f"ova_logits.{name}"]))
            for name, branch in self.branches().items()
        }
        if "freq" in predictions:
            predictions["fused"] = fuse(predictions["time"], predictions["freq"])
        return predictions

    def reported_branch(self) -> str:
        return REPORTED[self.switches.prediction] if self.freq is not None else "time"

    def monitors(self) -> dict[str, float]:
        return {key: value for name, branch in self.branches().items() for key, value in branch.monitors(name).items()}


METHOD = SafeECGMatch
