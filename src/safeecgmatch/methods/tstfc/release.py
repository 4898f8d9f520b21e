"""TS-TFC as the published benchmark runs it: a supervised two-branch network with SupCon on two weak views.

    L = sum over branches b in {time, frequency} of CE(z_b) + 0.05 SupCon_b + [warm-up over] H(z_b^u, q of the other)

No unlabelled record ever influences a weight: the warm-up of 500 is compared with the epoch, of which there are 50, so
the cross pseudo-label term H is never computed. `warmup_counts: iterations` reaches it: then labels are propagated
over the whole pool at every evaluation, and the cut-off of 0.95 accepts (next to) nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor

from safeecgmatch.config import Count, Scale, Share, Weight
from safeecgmatch.engine.contract import Batch, Losses
from safeecgmatch.engine.method import Context, Switches
from safeecgmatch.engine.views import spectrum, weak
from safeecgmatch.methods.parts.contrast import supcon_unit
from safeecgmatch.methods.parts.losses import cross_entropy
from safeecgmatch.methods.parts.twobranch import BRANCHES, OTHER, TwoBranch, TwoBranchHyper
from safeecgmatch.methods.tstfc.rounds import masked_soft_cross_entropy, nearest_neighbours, propagate_rounds


class TSTFCSwitches(Switches):
    warm_up: Count
    warmup_counts: Literal["epochs", "iterations"]
    supcon_temperature: Scale
    alpha: Share
    rounds: Count
    lambda_cross: Weight
    confidence_weight: bool


def step(z: Tensor, v: Tensor, y: Tensor, temperature: float) -> dict[str, Tensor]:
    """The labelled terms of one branch, from logits and projections of both weak views."""
    return {"supervised": cross_entropy(z, y), "contrast": supcon_unit(v, y, temperature)}


def make_bank(
    features: Tensor, labels: Tensor, num_classes: int, k: int, alpha: float, rounds: int, cutoff: float
) -> tuple[Tensor, Tensor]:
    """(soft pseudo-labels, mask) of the nodes without a label, which come after those that `labels` are for."""
    known = torch.cat([labels, labels.new_full((len(features) - len(labels),), -1)])
    scores = propagate_rounds(nearest_neighbours(features, k), known, num_classes, alpha, rounds)[len(labels) :]
    return scores, scores.amax(dim=1) >= cutoff


class TSTFCRelease(TwoBranch[TSTFCSwitches]):
    Switches = TSTFCSwitches

    def __init__(self, context: Context[TwoBranchHyper, TSTFCSwitches]) -> None:
        super().__init__(context)
        self.make_networks(channels_per_lead=1)
        self.banks: dict[str, tuple[Tensor, Tensor]] = {}

    def past_warm_up(self, n: int) -> bool:
        clock = n // self.setting.epoch + 1 if self.switches.warmup_counts == "epochs" else n
        return clock > self.switches.warm_up

    def before_step(self, n: int) -> None:
        if n % self.setting.epoch == 0 and self.past_warm_up(n):
            self.banks = self._make_banks()

    def losses(self, batch: Batch, n: int) -> Iterator[Losses]:
        """The branches share no gradient, so each is back-propagated before the next is computed."""
        views = self.rng("views")
        x, y = torch.cat([weak(batch.x_l, views), weak(batch.x_l, views)]), batch.y_l.repeat(2)
        x_u = weak(batch.x_u, views) if self.banks else None
        for name in BRANCHES:
            features = self.backbone(name).features(self.branch_input(name, x))
            terms = step(
                self.backbone(name).fc(features), self.projections[name](features), y, self.switches.supcon_temperature
            )
            total = terms["supervised"] + self.hyper.lambda_supcon * terms["contrast"]
            pseudo = torch.zeros_like(batch.position_u)
            accepted = pseudo.bool()
            if x_u is not None:
                targets, mask = (part[batch.position_u] for part in self.banks[OTHER[name]])
                z_u = self.backbones[name](self.branch_input(name, x_u))
                terms["cross"] = masked_soft_cross_entropy(z_u, targets, mask, self.switches.confidence_weight)
                total = total + self.switches.lambda_cross * terms["cross"]
                pseudo, accepted = targets.argmax(dim=1), mask
            named = {f"{term}.{name}": value for term, value in terms.items()}
            # The records accepted by the frequency branch teach the time branch; one branch is enough to watch.
            yield Losses(total, named, accepted if name == "time" else None, pseudo if name == "time" else None)

    @torch.no_grad()
    def _make_banks(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Propagation over one weak view of every labelled record, then of every record of the pool."""
        labelled, pool, hyper, switches = self.data.labelled, self.data.pool, self.hyper, self.switches
        assert labelled.labels is not None, "labelled records have labels"
        self.eval()
        rows: dict[str, list[Tensor]] = {name: [] for name in BRANCHES}
        for _, raw in chain(labelled.batches(128), pool.batches(128)):
            x = weak(raw, self.rng("bank"))
            for name in BRANCHES:
                rows[name].append(self.backbone(name).features(self.branch_input(name, x)))
        self.train()
        return {
            name: make_bank(
                torch.cat(rows[name]),
                labelled.labels,
                self.setting.num_classes,
                k,
                switches.alpha,
                switches.rounds,
                hyper.cutoff,
            )
            for name, k in zip(BRANCHES, (hyper.k_time, hyper.k_freq), strict=True)
        }

    def branch_input(self, name: str, x: Tensor) -> Tensor:
        return x if name == "time" else spectrum(x)

    def reported_branch(self) -> str:
        return "mean"

    def memory(self) -> dict[str, Any]:
        return {"banks": {name: list(bank) for name, bank in self.banks.items()}}

    def load_memory(self, memory: dict[str, Any]) -> None:
        device = self.rng.device
        self.banks = {name: (bank[0].to(device), bank[1].to(device)) for name, bank in memory["banks"].items()}


METHOD = TSTFCRelease
