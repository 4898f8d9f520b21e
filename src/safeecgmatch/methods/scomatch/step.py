"""The mathematics of SCOMatch on plain logits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from safeecgmatch.config import Positive, Share
from safeecgmatch.engine.contract import Losses
from safeecgmatch.engine.method import Hyper
from safeecgmatch.methods.parts.losses import cross_entropy, masked_mean, pseudo_label_loss
from safeecgmatch.methods.scomatch.state import State


class SCOMatchHyper(Hyper):
    threshold: Share
    lowest_ood_threshold: Share
    memory: Positive  # entries
    plus_on_weak: bool  # L_plus on the weak rows too, mean over both (the original outside CIFAR-10)


class Logits(NamedTuple):
    labelled: Tensor
    memory: Tensor  # no rows where none was drawn
    weak: Tensor
    strong: Tensor


@dataclass(frozen=True, kw_only=True)
class Step(Losses):
    """With the masks and pseudo-labels of L_plus and L_known, and the state of the next iteration."""

    plus_mask: Tensor
    known_mask: Tensor
    pseudo_known: Tensor
    state: State


def step(
    z: Logits, y_l: Tensor, memory_scores: Tensor, x_w: Tensor, state: State, opened: bool, hyper: SCOMatchHyper
) -> Step:
    """`memory_scores` of the drawn entries; `x_w`: what the memory keeps of a row; `opened`: L_mem and L_plus count."""
    ood = z.weak.shape[1] - 1
    p = z.weak.detach().softmax(dim=1)
    confidence, pseudo = p.max(dim=1)
    pseudo_known = z.weak.detach()[:, :ood].argmax(dim=1)
    known_mask = (confidence >= hyper.threshold) & (pseudo < ood)
    plus_mask = known_mask | ((confidence >= state.tau_ood) & (pseudo == ood))
    plus = pseudo_label_loss(z.strong, pseudo, plus_mask, "batch")
    if hyper.plus_on_weak:
        plus = (plus + pseudo_label_loss(z.weak, pseudo, plus_mask, "batch")) / 2
    terms = {
        "supervised": cross_entropy(z.labelled, y_l),
        "memory": masked_mean(-z.memory.log_softmax(dim=1)[:, ood], memory_scores < hyper.threshold, "batch"),
        "plus": plus,
        "known": pseudo_label_loss(z.strong[:, :ood], pseudo_known, known_mask, "batch"),
    }
    if not opened:
        terms |= {"memory": torch.zeros_like(plus), "plus": torch.zeros_like(plus)}
    tallied = F.one_hot(pseudo, ood + 1) * (confidence > hyper.threshold)[:, None]
    pushed = state.push(x_w, p[:, :ood].amax(dim=1), hyper.memory)
    return Step(
        torch.stack(list(terms.values())).sum(),
        terms,
        accepted=plus_mask if opened else known_mask,
        pseudo=pseudo,
        plus_mask=plus_mask,
        known_mask=known_mask,
        pseudo_known=pseudo_known,
        state=replace(pushed, tallies=pushed.tallies + tallied.sum(dim=0)),
    )
