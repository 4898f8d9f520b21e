"""IOMatch (Li et al., ICCV 2023): inliers and outliers together, as one extra class of an open-set target.

    a closed logits, (u, v) outlier and inlier probability per class, c open logits (K+1); p~ = Align(softmax(a(x_w)))
    s = sum_k p~_k u_k,   q = (p~_1 v_1, ..., p~_K v_K, s)
    L = CE(a(x_l), y) + L_ova(x_l) + w(n) [ (1/B) sum 1[s < 0.5] 1[max p~ >= 0.95] H(p~, a(x_s))
                                          + 1[n >= start] (1/B) sum 1[max q >= 0.5] H(q, c(x_s)) ]

Targets are soft and carry no gradient, but the weak rows share batch statistics with the others: one forward of
[x_l | x_w | x_s]. Align divides by the mean of the last 128 batch means. Predictions come from the closed head alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from safeecgmatch.config import Moment, Positive
from safeecgmatch.engine.contract import Batch, Losses, Outputs, Prediction
from safeecgmatch.engine.method import Context, SingleNetwork, Switches
from safeecgmatch.engine.models import initialise_linear_
from safeecgmatch.engine.views import strong, weak
from safeecgmatch.methods.iomatch.alignment import Alignment, align
from safeecgmatch.methods.iomatch.step import Heads, IOMatchHyper, step
from safeecgmatch.methods.parts.losses import exponential_ramp
from safeecgmatch.methods.parts.one_vs_all import one_vs_all_probabilities

MONITOR_BATCH = 128


class IOMatchSwitches(Switches):
    align: bool
    monitoring_pass: bool
    projection_dim: Positive | Literal["features"]
    ova_bias: bool
    head_init: Literal["default_and_xavier", "normal"]
    ramp: Moment
    open_start: Moment


class IOMatch(SingleNetwork[IOMatchHyper, IOMatchSwitches]):
    Hyper = IOMatchHyper
    Switches = IOMatchSwitches

    def __init__(self, context: Context[IOMatchHyper, IOMatchSwitches]) -> None:
        super().__init__(context)
        classes, switches = self.setting.num_classes, self.switches
        dim = self.network.dim
        width = dim if switches.projection_dim == "features" else switches.projection_dim
        self.projection = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, width))
        self.ova = nn.Linear(width, 2 * classes, bias=switches.ova_bias)
        self.open = nn.Linear(width, classes + 1)
        initialise_linear_(self.network)
        if switches.head_init == "normal":
            initialise_linear_(self.projection, self.ova, self.open)
        else:
            nn.init.xavier_normal_(self.ova.weight)
            nn.init.xavier_normal_(self.open.weight)
            nn.init.zeros_(self.open.bias)
        means = torch.zeros(self.hyper.queue, classes, device=self.rng.device)
        self.alignment = Alignment(means) if switches.align else None

    def heads(self, x: Tensor) -> Heads:
        features = self.network.features(x)
        projected = self.projection(features)
        return Heads(self.network.fc(features), self.ova(projected), self.open(projected))

    def before_step(self, n: int) -> None:
        """The published code looks at the whole pool before each epoch, and its alignment takes that for training."""
        if self.alignment is None or not self.switches.monitoring_pass or n % self.epoch():
            return
        views = self.rng("monitoring views")
        self.eval()
        with torch.no_grad():
            for _, x in self.data.pool.batches(MONITOR_BATCH):
                _, self.alignment = align(self.network(weak(x, views)).softmax(dim=1), self.alignment)
        self.train()

    def losses(self, batch: Batch, n: int) -> Iterator[Losses]:
        views, rate = self.rng("views"), self.setting.sampling_rate
        x = torch.cat([weak(batch.x_l, views), weak(batch.x_u, views), strong(batch.x_u, views, rate)])
        sizes = [len(batch.x_l), len(batch.x_u), len(batch.x_u)]
        split = [head.split(sizes) for head in self.heads(x)]
        labelled, weakly, strongly = (Heads(*rows) for rows in zip(*split, strict=True))
        weight = exponential_ramp(n, self.setting.moment(self.switches.ramp))
        opened = n >= self.setting.moment(self.switches.open_start)
        result = step((labelled, weakly, strongly), batch.y_l, self.alignment, weight, opened, self.hyper)
        self.alignment = result.state
        yield result

    def outputs(self, x: Tensor) -> Outputs:
        heads = self.heads(x)
        return {"class_logits.main": heads.closed, "ova_logits.main": heads.ova, "open_logits.main": heads.open}

    def predict(self, outputs: Outputs) -> dict[str, Prediction]:
        log_probs = outputs["class_logits.main"].log_softmax(dim=1)
        outlier, _ = one_vs_all_probabilities(outputs["ova_logits.main"])
        return {"main": Prediction(log_probs, (log_probs.exp() * outlier).sum(dim=1))}

    def memory(self) -> dict[str, Any]:
        return {} if self.alignment is None else {"means": self.alignment.means, "pointer": self.alignment.pointer}

    def load_memory(self, memory: dict[str, Any]) -> None:
        self.alignment = Alignment(memory["means"].to(self.rng.device), memory["pointer"]) if memory else None


METHOD = IOMatch
