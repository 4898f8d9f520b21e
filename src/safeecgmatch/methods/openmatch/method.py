"""OpenMatch (Saito et al., NeurIPS 2021): FixMatch on the pool records that a one-vs-all detector takes for inliers.

    L = L_x + lambda_ova L_ova + lambda_em L_em + lambda_socr L_socr + lambda_fix L_fix

Forward A on two weak views each of the labelled and of the unlabelled records gives L_x (cross-entropy) and L_ova
(Eq. 9) on the labelled, L_em (entropy) and L_socr (Eq. 10) on the unlabelled ones. At `start`, and then at every
evaluation, one pass over the whole pool keeps the positions whose predicted class the detector calls an inlier; from
then on forward B on weak and strong views of records drawn among those, by a sampler of its own, gives L_fix.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from safeecgmatch.config import Moment, Share
from safeecgmatch.engine.contract import Batch, Evaluation, Losses, Outputs, Prediction
from safeecgmatch.engine.method import Context, SingleNetwork, Switches
from safeecgmatch.engine.sampling import Stream, make_stream
from safeecgmatch.engine.views import strong, weak
from safeecgmatch.methods.openmatch.step import OpenMatchHyper, looks_inlying, step, unseen_score
from safeecgmatch.methods.parts.losses import accept_confident, pseudo_label_loss

SELECTION_BATCH = 128


class OpenMatchSwitches(Switches):
    start: Moment
    threshold: Share
    average_over: Literal["batch", "selected"]


class OpenMatch(SingleNetwork[OpenMatchHyper, OpenMatchSwitches]):
    Hyper = OpenMatchHyper
    Switches = OpenMatchSwitches

    def __init__(self, context: Context[OpenMatchHyper, OpenMatchSwitches]) -> None:
        super().__init__(context)
        self.ova = nn.Linear(self.network.dim, 2 * self.setting.num_classes, bias=False)
        self.start = self.setting.moment(self.switches.start)
        self.selected = torch.arange(len(self.data.pool))
        self.stream = self.new_stream()

    def new_stream(self) -> Stream:
        order, batch, epoch = self.switches.batch_order, self.setting.unlabelled_batch, self.epoch()
        return make_stream(order, len(self.selected), batch, epoch, self.rng.on_cpu("selected order"))

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.network.features(x)
        return self.network.fc(features), self.ova(features)

    @torch.no_grad()
    def select(self) -> None:
        """Judge every pool position by one weak view, in evaluation mode; where none passes the old set is kept."""
        was_training = self.training
        self.eval()
        generator = self.rng("selection views")
        passed = [
            positions[looks_inlying(*self.heads(weak(x, generator))).cpu()]
            for positions, x in self.data.pool.batches(SELECTION_BATCH)
        ]
        self.train(was_training)
        selected = torch.cat(passed)
        self.selected = selected if len(selected) else self.selected
        self.stream = self.new_stream()

    def before_step(self, n: int) -> None:
        if n == self.start:
            self.select()

    def after_evaluation(self, evaluation: Evaluation) -> None:
        if self.start < evaluation.iteration < self.setting.iterations:
            self.select()

    def losses(self, batch: Batch, n: int) -> Iterator[Losses]:
        views = self.rng("views")
        x = torch.cat([weak(records, views) for records in (batch.x_l, batch.x_l, batch.x_u, batch.x_u)])
        z, o = self.heads(x)
        labelled, unlabelled = 2 * len(batch.x_l), len(batch.x_u)
        o_l, o_1, o_2 = o.split([labelled, unlabelled, unlabelled])
        first = step(z[:labelled], o_l, batch.y_l.repeat(2), o_1, o_2, self.hyper)
        if n < self.start:
            nothing = torch.zeros(unlabelled, dtype=torch.bool, device=z.device)
            yield Losses(first.total, first.terms | {"fix": z.new_zeros(())}, nothing, nothing.long())
            return
        positions = self.selected[self.stream.next()]
        records = self.data.pool.batch(positions)
        x = torch.cat([weak(records, views), strong(records, views, self.setting.sampling_rate)])
        z_w, z_s = self.network(x).chunk(2)
        pseudo, accepted = accept_confident(z_w, self.switches.threshold, strict=True)
        fix = pseudo_label_loss(z_s, pseudo, accepted, self.switches.average_over)
        total = first.total + self.hyper.lambda_fix * fix
        yield Losses(total, first.terms | {"fix": fix}, accepted, pseudo, position=positions)

    def outputs(self, x: Tensor) -> Outputs:
        z, o = self.heads(x)
        return {"class_logits.main": z, "ova_logits.main": o}

    def predict(self, outputs: Outputs) -> dict[str, Prediction]:
        z, o = outputs["class_logits.main"], outputs["ova_logits.main"]
        return {"main": Prediction(z.log_softmax(dim=1), unseen_score(z, o))}

    def monitors(self) -> dict[str, float]:
        return {"selected_share": len(self.selected) / len(self.data.pool)}

    def memory(self) -> dict[str, Any]:
        return {"selected": self.selected, "stream": self.stream.state()}

    def load_memory(self, memory: dict[str, Any]) -> None:
        self.selected = memory["selected"]
        self.stream = self.new_stream()
        self.stream.load(memory["stream"])


METHOD = OpenMatch
