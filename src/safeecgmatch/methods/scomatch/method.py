"""SCOMatch (Wang et al., ECCV 2024): unseen classes as the (K+1)-th class, learnt from a memory of unlikely records.

    P = softmax(z(x_w)) over K+1, M = max P, A = arg max P, A' = arg max_{k<K} z(x_w);   t_ood adapts in [0.75, 0.95]
    L = CE(z(x_l), y) + L_mem + L_plus + L_known
    L_mem   = (1/B) sum over drawn memory entries of 1[score < 0.95] CE(z(mem), K)
    L_plus  = (1/B) sum (1[M >= 0.95, A < K] + 1[M >= t_ood, A = K]) CE(z(x_s), A)          K+1 logits
    L_known = (1/B) sum 1[M >= 0.95, A < K] CE(z(x_s)[:K], A')                              K logits

Each iteration pushes the weak view with the lowest known-class probability. L_mem and L_plus wait for `start`; memory,
tallies and L_known run from the first iteration. One forward of [x_l | memory | x_w | x_s].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from safeecgmatch.config import Moment
from safeecgmatch.engine.contract import Batch, Losses, Outputs, Prediction
from safeecgmatch.engine.method import Context, SingleNetwork, Switches
from safeecgmatch.engine.models import ResNet1D, initialise_linear_
from safeecgmatch.engine.views import strong, weak
from safeecgmatch.methods.scomatch.state import State
from safeecgmatch.methods.scomatch.step import Logits, SCOMatchHyper, step

UPDATE_SHARE = 64  # the threshold is renewed once per pool size / 64 iterations


class SCOMatchSwitches(Switches):
    start: Moment
    duplicate_views: bool
    reset_tau_each_epoch: bool


class SCOMatch(SingleNetwork[SCOMatchHyper, SCOMatchSwitches]):
    Hyper = SCOMatchHyper
    Switches = SCOMatchSwitches

    def __init__(self, context: Context[SCOMatchHyper, SCOMatchSwitches]) -> None:
        super().__init__(context)
        self.state = State.new(self.setting.num_classes, self.hyper.threshold, self.rng.device)
        self.start = self.setting.moment(self.switches.start)
        self.period = max(1, len(self.data.pool) // UPDATE_SHARE)

    def make_network(self) -> ResNet1D:
        """K + 1 classes, no bias, small weights."""
        network = ResNet1D(self.setting.leads, self.setting.num_classes + 1, self.setting.width)
        network.fc = nn.Linear(network.dim, self.setting.num_classes + 1, bias=False)
        initialise_linear_(network)
        return network

    def epoch(self) -> int:
        """Long enough for one renewal of the threshold before the next epoch sets it back."""
        return max(super().epoch(), self.period + 1)

    def before_step(self, n: int) -> None:
        """The adaptive threshold: in the published code the clock starts anew, at 0.95, in each epoch."""
        i = n % self.epoch() if self.switches.reset_tau_each_epoch else n
        if i == 0:
            self.state = replace(self.state, tau_ood=torch.full_like(self.state.tau_ood, self.hyper.threshold))
        elif n >= self.start and i % self.period == 0:
            self.state = self.state.renewed(self.hyper.threshold, self.hyper.lowest_ood_threshold)

    def losses(self, batch: Batch, n: int) -> Iterator[Losses]:
        views, rate, state = self.rng("views"), self.setting.sampling_rate, self.state
        drawn = state.draw(len(batch.x_l), self.rng.on_cpu("memory"))
        x_l, x_w, x_s = weak(batch.x_l, views), weak(batch.x_u, views), strong(batch.x_u, views, rate)
        # The published code feeds the unlabelled views twice; the copies' logits are equal, so only batch
        # normalisation notices, and reading the first copy gives the same gradient.
        copies = [x_w, x_s] * (2 if self.switches.duplicate_views else 1)
        memory = [torch.stack([state.items[j] for j in drawn])] if drawn else []
        sizes = [len(x_l), len(drawn), len(x_w), len(x_s)]
        rows = self.network(torch.cat([x_l, *memory, *copies]))[: sum(sizes)]
        logits, opened = Logits(*rows.split(sizes)), n >= self.start
        result = step(logits, batch.y_l, state.scores[drawn], x_w, state, opened, self.hyper)
        self.state = result.state
        yield result

    def outputs(self, x: Tensor) -> Outputs:
        return {"open_logits.main": self.network(x)}

    def predict(self, outputs: Outputs) -> dict[str, Prediction]:
        z = outputs["open_logits.main"]
        return {"main": Prediction(z[:, :-1].log_softmax(dim=1), z.softmax(dim=1)[:, -1])}

    def monitors(self) -> dict[str, float]:
        return {"tau_ood": self.state.tau_ood.item()}

    def memory(self) -> dict[str, Any]:
        return {**vars(self.state), "items": list(self.state.items)}

    def load_memory(self, memory: dict[str, Any]) -> None:
        device = self.rng.device
        items = tuple(item.to(device) for item in memory["items"])
        self.state = State(items, *(memory[name].to(device) for name in ("scores", "tallies", "tau_ood")))


METHOD = SCOMatch
