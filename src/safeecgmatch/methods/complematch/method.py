"""CompleMatch (Liu et al., TPAMI 2025): TS-TFC with augmented views, a contrastive step and complementary branches.

    step A:  L = SimCLR(p1(f(a1)), p2(f(a2))) over all records, for both branches
    step B:  L = sum over branches of CE(z over labelled rows and rows accepted by the other branch)
                 + 0.5 [CE(z(a1)) + CE(z(a2))] + 0.05 SupCon(p(f(x))) + L_con(z, other z)

a1, a2 are two more views of the same domain, made once for each record (time: pooled pairs, time warp; frequency:
low-pass, dropped bins). L_con wants the branches to be confident on different records. Before that comes a warm-up on
labelled records alone (50 % of the budget) in which the weight of the augmented views grows from 0 to 1. Propagation,
selection and prediction are TS-TFC's. Our adaptation of the original repository to this benchmark's backbone, optimiser
and batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from safeecgmatch.config import Scale, Share, Weight
from safeecgmatch.engine.contract import Batch, Losses
from safeecgmatch.engine.generators import derived_seed
from safeecgmatch.engine.method import Context
from safeecgmatch.engine.views import amplitude_phase, standardise, weak
from safeecgmatch.methods.complematch.losses import complementarity, simclr
from safeecgmatch.methods.complematch.views import (
    KNOTS,
    drop_bins,
    hashed_normal,
    hashed_uniform,
    low_pass,
    magnitude_warp,
    pool_pairs,
    time_warp,
)
from safeecgmatch.methods.parts.contrast import supcon_raw
from safeecgmatch.methods.parts.losses import cross_entropy
from safeecgmatch.methods.parts.propagation import PseudoLabels, shared_cross_entropy
from safeecgmatch.methods.parts.twobranch import BRANCHES, OTHER, CoTrained, CoTrainedSwitches, TwoBranchHyper

HEADS = ("main", "first", "second")
WARP, DROPOUT = 1, 2  # names of the random views in the hash


class CompleMatchSwitches(CoTrainedSwitches):
    simclr_temperature: Scale
    lambda_augmented: Weight
    lambda_complementarity: Weight
    time_view: Literal["time_warp", "magnitude_warp"]
    warp_std: Weight
    low_pass: Share
    bin_dropout: Share
    static_views: bool


def step(
    z: Sequence[Tensor], v: Tensor, other: Tensor, y_l: Tensor, by_other: PseudoLabels, temperature: float
) -> dict[str, Tensor]:
    """The loss terms of one branch; rows are labelled, then unlabelled ones (none in the warm-up).

    `z` holds its logits of the main and both augmented views, `other` those of the other branch's main view.
    """
    n = len(y_l)
    return {
        "supervised": shared_cross_entropy(z[0], y_l, by_other.labels, by_other.accepted),
        "augmented": cross_entropy(z[1][:n], y_l) + cross_entropy(z[2][:n], y_l),
        "contrast": supcon_raw(v[:n], y_l, temperature),
        "complementarity": complementarity(z[0], other),
    }


class CompleMatch(CoTrained[CompleMatchSwitches]):
    Switches = CompleMatchSwitches

    def __init__(self, context: Context[TwoBranchHyper, CompleMatchSwitches]) -> None:
        super().__init__(context)
        self.make_networks(channels_per_lead=2, heads=[f"{name}_{head}" for name in BRANCHES for head in HEADS])

    def losses(self, batch: Batch, n: int) -> Iterator[Losses]:
        length = self.setting.moment(self.switches.warm_up)
        warm_up = n < length
        x = standardise(batch.x_l if warm_up else torch.cat([batch.x_l, batch.x_u]))
        records = batch.record_l if warm_up else torch.cat([batch.record_l, batch.record_u])
        inputs = self._views(x, records, n)
        if not warm_up:
            contrast = {f"simclr.{name}": self._simclr(name, inputs[name]) for name in BRANCHES}
            yield Losses(contrast["simclr.time"] + contrast["simclr.freq"], contrast, step=True)
        features = {name: [self.backbone(name).features(x) for x in inputs[name]] for name in BRANCHES}
        z = {name: [self.backbone(name).fc(part) for part in features[name]] for name in BRANCHES}
        v = {name: self._project(name, "main", features[name][0]) for name in BRANCHES}
        if warm_up:
            by, watched = dict.fromkeys(BRANCHES, PseudoLabels.none_of(x[:0])), PseudoLabels.none_of(batch.x_u)
        else:
            by = self.co_training.pseudo_labels(v, batch.y_l)
            watched = by["freq"]  # those that teach the time branch
        terms: dict[str, Tensor] = {}
        for name, other in OTHER.items():
            temperature = self.switches.supcon_temperature
            part = step(z[name], v[name], z[other][0], batch.y_l, by[other], temperature)
            terms |= {f"{term}.{name}": value for term, value in part.items()}
        weights = {
            "supervised": 1.0,
            "augmented": n / length if warm_up else self.switches.lambda_augmented,
            "contrast": self.hyper.lambda_supcon,
            "complementarity": self.switches.lambda_complementarity,
        }
        total = torch.stack([weights[term.partition(".")[0]] * value for term, value in terms.items()]).sum()
        yield Losses(total, terms, accepted=watched.accepted, pseudo=watched.labels)

    def _project(self, name: str, head: str, features: Tensor) -> Tensor:
        return self.projections[f"{name}_{head}"](features)

    def _views(self, x: Tensor, records: Tensor, n: int) -> dict[str, list[Tensor]]:
        """Main, first and second input of each branch, from normalised records; only the main one is weak."""
        switches, seed = self.switches, self.setting.seed
        if not switches.static_views:
            seed = derived_seed(seed, f"views of iteration {n}")
        leads, transform = x.shape[1], torch.fft.rfft(x, dim=-1)
        factors = hashed_normal(seed, records, WARP, leads, KNOTS, switches.warp_std)
        warp = time_warp if switches.time_view == "time_warp" else magnitude_warp
        both = amplitude_phase(transform)
        draws = hashed_uniform(seed, records, DROPOUT, 2 * leads, both.shape[-1])
        main = weak(x, self.rng("views"))
        return {
            "time": [main, pool_pairs(x), warp(x, factors)],
            "freq": [
                amplitude_phase(torch.fft.rfft(main, dim=-1)),
                amplitude_phase(low_pass(transform, x.shape[-1], switches.low_pass)),
                drop_bins(both, draws < switches.bin_dropout),
            ],
        }

    def _simclr(self, name: str, inputs: list[Tensor]) -> Tensor:
        first, second = (
            self._project(name, head, self.backbone(name).features(x))
            for head, x in zip(HEADS[1:], inputs[1:], strict=True)
        )
        return simclr(first, second, self.switches.simclr_temperature)

    def branch_input(self, name: str, x: Tensor) -> Tensor:
        return x if name == "time" else amplitude_phase(torch.fft.rfft(x, dim=-1))


METHOD = CompleMatch
