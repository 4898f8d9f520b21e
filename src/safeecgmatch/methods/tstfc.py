"""TS-TFC (Liu et al., AAAI 2023): a time and a frequency branch that teach each other by propagated labels.

    L = sum over branches b of CE(z_b over labelled rows and rows accepted by the other branch) + 0.05 SupCon(v_b)

Labels are propagated in each branch's projection space over the last three batches, F = (I - 0.99 S)^-1 Y, and accepted
where max softmax(F) >= 0.95 b_c / (2 - b_c), b_c the relative frequency of the class. The frequency input is amplitude
and phase of the same view. Before that comes a warm-up on labelled records alone (30 % of the budget). The branch with
the higher validation accuracy gives the prediction. Our adaptation of the original repository: backbone, optimiser and
batches are the benchmark's, the weak view is applied after normalisation, and logits go into the cross-entropy once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from safeecgmatch import losses
from safeecgmatch.methods.base import Batch, Evaluation, Hyper, Losses, Method, Outputs, Prediction, Switches
from safeecgmatch.models import ResNet1D, projection_head
from safeecgmatch.propagation import CoTraining, Propagation, PseudoLabels, better_branch
from safeecgmatch.views import amplitude_phase, spectrum, standardise, weak

BRANCHES = CoTraining.BRANCHES


class TSTFCHyper(Hyper):
    k_time: int
    k_freq: int
    cutoff: float
    lambda_supcon: float
    projection_hidden: int
    projection_dim: int


class TSTFCSwitches(Switches):
    warm_up: int
    frequency_input: Literal["amplitude_phase", "amplitude"]
    supcon_temperature: float
    queue: int
    sigma: float
    alpha: float


def step(z: Tensor, v: Tensor, y_l: Tensor, by_other: PseudoLabels, temperature: float) -> dict[str, Tensor]:
    """The loss terms of one branch: logits and raw projections of labelled rows, then of unlabelled ones."""
    return {
        "supervised": losses.shared_cross_entropy(z, y_l, by_other.labels, by_other.accepted),
        "contrast": losses.supcon_raw(v[: len(y_l)], y_l, temperature),
    }


class TSTFC(Method):
    Hyper = TSTFCHyper
    Switches = TSTFCSwitches
    branch: Tensor

    def __init__(self, *context: Any) -> None:
        super().__init__(*context)
        setting, hyper, switches = self.setting, self.hyper, self.switches
        per_lead = 2 if switches.frequency_input == "amplitude_phase" else 1
        channels = {"time": setting.leads, "freq": per_lead * setting.leads}
        self.backbones = nn.ModuleDict(
            {name: ResNet1D(channels[name], setting.num_classes, setting.width) for name in BRANCHES}
        )
        self.projections = nn.ModuleDict(
            {
                name: projection_head(8 * setting.width, hyper.projection_hidden, hyper.projection_dim)
                for name in BRANCHES
            }
        )
        self.register_buffer("branch", torch.tensor(0))  # the reported one, as its index in BRANCHES
        shared = (switches.sigma, switches.alpha, hyper.cutoff)
        self.co_training = CoTraining(
            Propagation(setting.num_classes, hyper.k_time, *shared),
            Propagation(setting.num_classes, hyper.k_freq, *shared),
            switches.queue,
        )

    def losses(self, batch: Batch, n: int) -> Iterator[Losses]:
        warm_up = n < self.setting.scaled(self.switches.warm_up)
        x = batch.x_l if warm_up else torch.cat([batch.x_l, batch.x_u])
        x = weak(standardise(x), self.rng("views"))
        features = {name: self._backbone(name).features(self._input(name, x)) for name in BRANCHES}
        z = {name: self._backbone(name).fc(features[name]) for name in BRANCHES}
        v = {name: self.projections[name](features[name]) for name in BRANCHES}
        if warm_up:
            by, watched = dict.fromkeys(BRANCHES, PseudoLabels.none_of(x[:0])), PseudoLabels.none_of(batch.x_u)
        else:
            by = self.co_training.pseudo_labels(v, batch.y_l)
            watched = by["freq"]  # those that teach the time branch
        temperature = self.switches.supcon_temperature
        time = step(z["time"], v["time"], batch.y_l, by["freq"], temperature)
        freq = step(z["freq"], v["freq"], batch.y_l, by["time"], temperature)
        supervised, contrast = time["supervised"] + freq["supervised"], time["contrast"] + freq["contrast"]
        yield Losses(
            total=supervised + self.hyper.lambda_supcon * contrast,
            terms={f"{term}.time": value for term, value in time.items()}
            | {f"{term}.freq": value for term, value in freq.items()},
            accepted=watched.accepted,
            pseudo=watched.labels,
        )

    def _input(self, name: str, x: Tensor) -> Tensor:
        """The branch's view of normalised records."""
        if name == "time":
            return x
        if self.switches.frequency_input == "amplitude":
            return spectrum(x)
        return amplitude_phase(torch.fft.rfft(x, dim=-1))

    def _backbone(self, name: str) -> ResNet1D:
        return cast(ResNet1D, self.backbones[name])

    def outputs(self, x: Tensor) -> Outputs:
        x = standardise(x)
        return {f"class_logits.{name}": self.backbones[name](self._input(name, x)) for name in BRANCHES}

    def predict(self, outputs: Outputs) -> dict[str, Prediction]:
        logits = {name: outputs[f"class_logits.{name}"] for name in BRANCHES}
        logits["mean"] = (logits["time"] + logits["freq"]) / 2
        return {name: Prediction(value.log_softmax(dim=1)) for name, value in logits.items()}

    def after_outputs(self, evaluation: Evaluation) -> None:
        self.branch.fill_(better_branch(evaluation.outputs, evaluation.labels))

    def reported_branch(self) -> str:
        return BRANCHES[int(self.branch)]

    def memory(self) -> dict[str, Any]:
        return {"queues": self.co_training.state()}

    def load_memory(self, memory: dict[str, Any]) -> None:
        self.co_training.load(memory["queues"], self.rng.device)


METHOD = TSTFC
