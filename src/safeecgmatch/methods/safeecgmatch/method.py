"""SafeECGMatch (the paper under study): CaliMatch twice, on the signal and on its spectrum.

    L = L^t + lambda_sum L^f,   L^d as in `calimatch/step.py`                                     Eqs. (18)-(19)

The frequency branch sees |rFFT| of the same weak views; its strong view is the first weak spectrum with a band zeroed
(Eqs. 6-7). Both branches have their own encoder, heads, temperatures, pseudo-labels and mask, and no tensor passes
between them: neither the paper's equations nor the published code couple them (the variant `coupled` does). So
lambda_sum cannot change the time branch, and scales the frequency branch's loss only, which Adam cancels but for its
epsilon. They are back-propagated one after the other, which halves the memory.

The paper leaves two questions open, so there are four readings of equal standing: temperatures fitted on validation
(Algorithm 1) or learned ("learnable", variant `learned_t`), and the prediction of both branches or of the time branch.
With learned temperatures the time branch is CaliMatch, byte for byte under one seed.

    prediction: mean of the branches' softmax(z / T_cls); unseen score 1 - mean S       (`release`: the time branch)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from safeecgmatch.engine.contract import Batch, Evaluation, Losses, Outputs, Prediction
from safeecgmatch.engine.method import Context, Method
from safeecgmatch.methods.calimatch.method import four_views, heads_of, new_branch
from safeecgmatch.methods.calimatch.step import CaliMatchHyper, own_scores, step
from safeecgmatch.methods.parts.branch import Branch
from safeecgmatch.methods.parts.calibration import Scores
from safeecgmatch.methods.safeecgmatch.variants import VARIANTS, SafeECGMatchSwitches
from safeecgmatch.methods.safeecgmatch.views import spectral_views

REPORTED = {"time": "time", "freq": "freq", "mean_prob": "fused"}


def fuse(time: Prediction, freq: Prediction) -> Prediction:
    """The mean of both probabilities, and of both unseen scores."""
    assert time.ood_score is not None and freq.ood_score is not None
    log_mean = torch.logaddexp(time.log_probs, freq.log_probs) - math.log(2.0)
    return Prediction(log_mean, (time.ood_score + freq.ood_score) / 2)


def mean_scores(branches: list[Scores]) -> Scores:
    """What the branches think together: the means of S, 1 - S and p."""
    return Scores(*(torch.stack(parts).mean(dim=0) for parts in zip(*branches, strict=True)))


class SafeECGMatch(Method[CaliMatchHyper, SafeECGMatchSwitches]):
    Hyper = CaliMatchHyper
    Switches = SafeECGMatchSwitches

    def __init__(self, context: Context[CaliMatchHyper, SafeECGMatchSwitches]) -> None:
        super().__init__(context)
        setting = self.setting
        self.variant = VARIANTS[setting.variant]
        self.switches = self.variant.applied(self.switches)
        self.lambda_sum = 1.0 if setting.lambda_sum is None else setting.lambda_sum
        self.start = setting.moment(self.switches.start)
        # One branch after the other: under one seed the time branch starts from the very weights of CaliMatch.
        self.time = self.new_branch("time")
        self.freq = self.new_branch("freq") if self.lambda_sum > 0 else None

    def new_branch(self, name: str) -> Branch:
        return new_branch(self.make_network(), self.hyper, self.switches, name in self.variant.calibrated)

    def branches(self) -> dict[str, Branch]:
        return {"time": self.time} if self.freq is None else {"time": self.time, "freq": self.freq}

    def before_step(self, n: int) -> None:
        if n == self.start:
            self.after_outputs(self.validate_now(n))

    def views(self, batch: Batch) -> dict[str, list[Tensor]]:
        """Labelled weak, unlabelled weak 1, weak 2 and strong, for each branch."""
        rate, transform = self.setting.sampling_rate, self.variant.transform
        time = four_views(batch, self.rng("views"), rate)
        if self.freq is None:
            return {"time": time}
        if transform is None:
            return {"time": time, "freq": four_views(batch, self.rng("second views"), rate)}
        return {"time": time, "freq": spectral_views(time, self.rng("bands"), transform)}

    def losses(self, batch: Batch, n: int) -> Iterator[Losses]:
        views, branches, late = self.views(batch), self.branches(), n >= self.start
        together, judged = {}, None
        if self.variant.coupled:
            together = {name: heads_of(branch, views[name]) for name, branch in branches.items()}
            judged = mean_scores([own_scores(together[name], branches[name].calibration()) for name in branches])
        for name, branch in branches.items():
            heads = together[name] if together else heads_of(branch, views[name])
            now = branch.calibration()
            result = step(batch.y_l, heads, now, self.hyper, self.switches, late, branch.calibrated, judged)
            terms = {f"{term}.{name}": value for term, value in result.terms.items()}
            if name == "time":
                yield Losses(result.total, terms, result.accepted, result.pseudo)
            else:
                assert result.accepted is not None
                mask_rate = {"mask_rate.freq": result.accepted.to(result.total).mean()}
                yield Losses(self.lambda_sum * result.total, terms, rates=mask_rate)

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
            transform = self.variant.transform if name == "freq" else None
            z, o = branch(x if transform is None else transform(x))
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
