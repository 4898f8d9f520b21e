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
from typing import Any

import torch
from torch import Tensor

from safeecgmatch.losses import accept_confident, cross_entropy, masked_mean, pseudo_label_loss, soft_cross_entropy
from safeecgmatch.methods.base import Batch, Hyper, Losses, Method, Outputs, Prediction, Switches
from safeecgmatch.models import ResNet1D
from safeecgmatch.views import strong, weak

PRIOR_EPS = 1e-9
DISTILL_SHARE = 50_000 / 262_144  # of the budget, as in the original configurations


class AdelloHyper(Hyper):
    threshold: float
    alpha_min: float
    alpha_power: float
    prior_decay: float


class AdelloSwitches(Switches):
    start: int
    distill: bool


def alpha_at(n: int, total: int, alpha_min: float, power: float) -> float:
    """1 - (1 - alpha_min) (n / N)^power."""
    return 1.0 - (1.0 - alpha_min) * (n / total) ** power


def shifts(prior: Tensor, labelled_prior: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """(d_L, d_U): from the smoothed target prior to the labelled and to the running one."""
    target = prior**alpha / (prior**alpha).sum()
    base = (target + PRIOR_EPS).log()
    return (labelled_prior + PRIOR_EPS).log() - base, (prior + PRIOR_EPS).log() - base


@dataclass(frozen=True)
class Step:
    """The mathematics of one iteration on plain logits; `prior` is the running prior of the next one."""

    labelled: Tensor
    consistency: Tensor
    distillation: Tensor
    accepted: Tensor
    pseudo: Tensor
    prior: Tensor


def step(
    z_l: Tensor,
    y_l: Tensor,
    z_w: Tensor,
    z_s: Tensor,
    prior: Tensor,
    labelled_prior: Tensor,
    alpha: float,
    hyper: AdelloHyper,
) -> Step:
    labelled_shift, shift = shifts(prior, labelled_prior, alpha)
    p = z_w.detach().softmax(dim=1)
    pseudo, accepted = accept_confident(z_w, hyper.threshold, strict=False)
    return Step(
        labelled=cross_entropy(z_l + labelled_shift, y_l),
        consistency=pseudo_label_loss(z_s + shift, pseudo, accepted, "batch"),
        distillation=masked_mean(soft_cross_entropy(z_s + shift, p), ~accepted, "batch"),
        accepted=accepted,
        pseudo=pseudo,
        prior=hyper.prior_decay * prior + (1.0 - hyper.prior_decay) * p.mean(dim=0),
    )


class Adello(Method):
    Hyper = AdelloHyper
    Switches = AdelloSwitches

    def __init__(self, *context: Any) -> None:
        super().__init__(*context)
        classes = self.setting.num_classes
        self.network = ResNet1D(self.setting.leads, classes, self.setting.width)
        assert self.data.labelled.labels is not None
        counts = torch.bincount(self.data.labelled.labels, minlength=classes).to(torch.float64)
        self.labelled_prior = counts / counts.sum()
        self.prior = torch.full_like(self.labelled_prior, 1.0 / classes)
        self.start = self.setting.scaled(self.switches.start)
        self.distill_start = max(1, round(DISTILL_SHARE * self.setting.iterations))

    def losses(self, batch: Batch, n: int) -> Iterator[Losses]:
        views, rate, hyper = self.rng("views"), self.setting.sampling_rate, self.hyper
        x = torch.cat([weak(batch.x_l, views), weak(batch.x_u, views), strong(batch.x_u, views, rate)])
        z_l, z_w, z_s = self.network(x).split([len(batch.x_l), len(batch.x_u), len(batch.x_u)])
        alpha = alpha_at(n, self.setting.iterations, hyper.alpha_min, hyper.alpha_power)
        result = step(z_l, batch.y_l, z_w, z_s, self.prior, self.labelled_prior, alpha, hyper)
        self.prior = result.prior
        terms = {"supervised": result.labelled}
        if n >= self.start:
            terms["consistency"] = result.consistency
        if self.switches.distill and n >= self.distill_start:
            terms["distillation"] = result.distillation
        yield Losses(
            total=torch.stack(list(terms.values())).sum(),
            terms=terms,
            accepted=result.accepted & (n >= self.start),
            pseudo=result.pseudo,
        )

    def outputs(self, x: Tensor) -> Outputs:
        return {"class_logits.main": self.network(x)}

    def predict(self, outputs: Outputs) -> dict[str, Prediction]:
        return {"main": Prediction(outputs["class_logits.main"].log_softmax(dim=1))}

    def monitors(self) -> dict[str, float]:
        return {f"prior.{k}": float(share) for k, share in enumerate(self.prior)}

    def memory(self) -> dict[str, Any]:
        return {"prior": self.prior}

    def load_memory(self, memory: dict[str, Any]) -> None:
        self.prior = memory["prior"].to(self.labelled_prior.device)


METHOD = Adello
