"""ADELLO (Sanchez Aimar et al., ECCV 2024): FixMatch with logits adjusted to a class prior that flattens over time.

    alpha = 1 - 0.9 (n/N)^2,  pi = p^^alpha / sum p^^alpha  (p^ the running mean prediction on the pool)
    d_L = ln[(pi_L + e)/(pi + e)],  d_U = ln[(p^ + e)/(pi + e)];   p = softmax(z(x_w)),  m = 1[max p >= 0.95]
    L = CE(z(x_l) + d_L, y) + 1[n >= start] (1/B) sum m CE(z(x_s) + d_U, argmax p)
                            + 1[n >= n_d] (1/B) sum (1 - m) H(p, z(x_s) + d_U)

The last term, complementary distillation, is missing from the published benchmark code. Priors are float64, so shifted
logits and losses are too. p^ <- 0.999 p^ + 0.001 mean p takes effect one iteration later. Predictions are unshifted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from safeecgmatch.config import Decay, Moment, Scale, Share
from safeecgmatch.engine.contract import Batch, Losses
from safeecgmatch.engine.method import Context, Hyper, SingleNetwork, Switches
from safeecgmatch.engine.views import strong, weak
from safeecgmatch.methods.parts.losses import (
    accept_confident,
    cross_entropy,
    masked_mean,
    pseudo_label_loss,
    soft_cross_entropy,
)

PRIOR_EPS = 1e-9
DISTILL_SHARE = 50_000 / 262_144  # of the budget, as in the original configurations


class AdelloHyper(Hyper):
    threshold: Share
    alpha_min: Share
    alpha_power: Scale
    prior_decay: Decay


class AdelloSwitches(Switches):
    start: Moment
    distill: bool


class Logits(NamedTuple):
    labelled: Tensor
    weak: Tensor
    strong: Tensor


def alpha_at(n: int, total: int, alpha_min: float, power: float) -> float:
    """1 - (1 - alpha_min) (n / N)^power."""
    return 1.0 - (1.0 - alpha_min) * (n / total) ** power


def shifts(prior: Tensor, labelled_prior: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """(d_L, d_U): from the smoothed target prior to the labelled and to the running one."""
    target = prior**alpha / (prior**alpha).sum()
    base = (target + PRIOR_EPS).log()
    return (labelled_prior + PRIOR_EPS).log() - base, (prior + PRIOR_EPS).log() - base


class Priors(NamedTuple):
    running: Tensor  # p^, changed by each iteration
    labelled: Tensor  # pi_L


@dataclass(frozen=True, kw_only=True)
class Step(Losses):
    prior: Tensor  # the running prior of the next iteration


def step(z: Logits, y_l: Tensor, priors: Priors, alpha: float, active: set[str], hyper: AdelloHyper) -> Step:
    """One iteration on plain logits; of "consistency" and "distillation" those count that are `active`."""
    labelled_shift, shift = shifts(priors.running, priors.labelled, alpha)
    p = z.weak.detach().softmax(dim=1)
    pseudo, accepted = accept_confident(z.weak, hyper.threshold, strict=False)
    unlabelled = {
        "consistency": pseudo_label_loss(z.strong + shift, pseudo, accepted, "batch"),
        "distillation": masked_mean(soft_cross_entropy(z.strong + shift, p), ~accepted, "batch"),
    }
    terms = {name: value if name in active else torch.zeros_like(value) for name, value in unlabelled.items()}
    terms["supervised"] = cross_entropy(z.labelled + labelled_shift, y_l)
    prior = hyper.prior_decay * priors.running + (1.0 - hyper.prior_decay) * p.mean(dim=0)
    used = accepted & ("consistency" in active)
    return Step(torch.stack(list(terms.values())).sum(), terms, used, pseudo, prior=prior)


class Adello(SingleNetwork[AdelloHyper, AdelloSwitches]):
    Hyper = AdelloHyper
    Switches = AdelloSwitches

    def __init__(self, context: Context[AdelloHyper, AdelloSwitches]) -> None:
        super().__init__(context)
        classes = self.setting.num_classes
        assert self.data.labelled.labels is not None
        counts = torch.bincount(self.data.labelled.labels, minlength=classes).to(torch.float64)
        self.labelled_prior = counts / counts.sum()
        self.prior = torch.full_like(self.labelled_prior, 1.0 / classes)
        self.start = self.setting.moment(self.switches.start)
        self.at_budget = self.hyper.model_copy(update={"prior_decay": self.setting.decay(self.hyper.prior_decay)})
        self.distill_start = max(1, round(DISTILL_SHARE * self.setting.iterations))

    def in_force(self) -> dict[str, Any]:
        return super().in_force() | ({"distill_start": self.distill_start} if self.switches.distill else {})

    def losses(self, batch: Batch, n: int) -> Iterator[Losses]:
        views, rate, hyper = self.rng("views"), self.setting.sampling_rate, self.hyper
        x = torch.cat([weak(batch.x_l, views), weak(batch.x_u, views), strong(batch.x_u, views, rate)])
        z = Logits(*self.network(x).split([len(batch.x_l), len(batch.x_u), len(batch.x_u)]))
        alpha = alpha_at(n, self.setting.iterations, hyper.alpha_min, hyper.alpha_power)
        starts = {"consistency": self.start} | ({"distillation": self.distill_start} if self.switches.distill else {})
        active = {name for name, start in starts.items() if n >= start}
        result = step(z, batch.y_l, Priors(self.prior, self.labelled_prior), alpha, active, self.at_budget)
        self.prior = result.prior
        yield result

    def monitors(self) -> dict[str, float]:
        return {f"prior.{k}": share.item() for k, share in enumerate(self.prior)}

    def memory(self) -> dict[str, Any]:
        return {"prior": self.prior}

    def load_memory(self, memory: dict[str, Any]) -> None:
        self.prior = memory["prior"].to(self.labelled_prior.device)


METHOD = Adello
