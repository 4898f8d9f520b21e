"""Supervised contrastive losses (TS-TFC, CompleMatch)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def supcon_unit(projections: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Supervised contrastive loss (Khosla et al. 2020) on unit rows u, with P(i) the other rows of i's class:

    l_i = -(1/|P(i)|) sum_{p in P(i)} [u_i.u_p / T - log sum_{a != i} exp(u_i.u_a / T)], mean over rows with |P(i)| > 0.
    """
    logits, others, positives = _contrast(F.normalize(projections, dim=1, eps=1e-12), labels, temperature)
    log_sum = (logits.exp() * others).sum(dim=1, keepdim=True).clamp(min=1e-12).log()
    return _mean_over_anchors(logits - log_sum, positives)


def supcon_raw(projections: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """The same loss on raw projections, as TS-TFC and CompleMatch define it (temperature 50)."""
    logits, others, positives = _contrast(projections, labels, temperature)
    log_sum = ((logits.exp() * others).sum(dim=1, keepdim=True) + 1e-12).log()
    return _mean_over_anchors(logits - log_sum, positives)


def _contrast(rows: Tensor, labels: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    logits = rows @ rows.T / temperature
    logits = logits - logits.max(dim=1, keepdim=True).values.detach()
    others = ~torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    return logits, others, (labels[:, None] == labels[None, :]) & others


def _mean_over_anchors(log_probs: Tensor, positives: Tensor) -> Tensor:
    """The mean over rows with a positive; a constant 0 where no row has one, without asking the device."""
    count = positives.sum(dim=1)
    per_row = -(log_probs * positives).sum(dim=1) / count.clamp(min=1)
    return per_row.sum() / (count > 0).sum().clamp(min=1)
