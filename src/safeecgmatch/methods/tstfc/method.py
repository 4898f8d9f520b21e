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
from typing import Literal

import torch
from torch import Tensor

from safeecgmatch.engine.contract import Batch, Losses
from safeecgmatch.engine.method import Context
from safeecgmatch.engine.views import amplitude_phase, spectrum, standardise, weak
from safeecgmatch.methods.parts.contrast import supcon_raw
from safeecgmatch.methods.parts.propagation import PseudoLabels, shared_cross_entropy
from safeecgmatch.methods.parts.twobranch import BRANCHES, CoTrained, CoTrainedSwitches, TwoBranchHyper


class TSTFCSwitches(CoTrainedSwitches):
    frequency_input: Literal["amplitude_phase", "amplitude"]


def step(z: Tensor, v: Tensor, y_l: Tensor, by_other: PseudoLabels, temperature: float) -> dict[str, Tensor]:
    """The loss terms of one branch: logits and raw projections of labelled rows, then of unlabelled ones."""
    return {
        "supervised": shared_cross_entropy(z, y_l, by_other.labels, by_other.accepted),
        "contrast": supcon_raw(v[: len(y_l)], y_l, temperature),
    }


class TSTFC(CoTrained[TSTFCSwitches]):
    Switches = TSTFCSwitches

    def __init__(self, context: Context[TwoBranchHyper, TSTFCSwitches]) -> None:
        super().__init__(context)
        self.make_networks(channels_per_lead=2 if self.switches.frequency_input == "amplitude_phase" else 1)

    def losses(self, batch: Batch, n: int) -> Iterator[Losses]:
        warm_up = n < self.setting.moment(self.switches.warm_up)
        x = batch.x_l if warm_up else torch.cat([batch.x_l, batch.x_u])
        x = weak(standardise(x), self.rng("views"))
        features = {name: self.backbone(name).features(self.branch_input(name, x)) for name in BRANCHES}
        z = {name: self.backbone(name).fc(features[name]) for name in BRANCHES}
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

    def branch_input(self, name: str, x: Tensor) -> Tensor:
        if name == "time":
            return x
        if self.switches.frequency_input == "amplitude":
            return spectrum(x)
        return amplitude_phase(torch.fft.rfft(x, dim=-1))


METHOD = TSTFC
