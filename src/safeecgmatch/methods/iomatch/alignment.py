"""IOMatch's distribution alignment."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

ALIGN_EPS = 1e-6


class Alignment(NamedTuple):
    """Ring of batch means, zeros where never written, float32 whatever the logits; `pointer` is the next slot."""

    means: Tensor
    pointer: int = 0


def align(p: Tensor, state: Alignment) -> tuple[Tensor, Alignment]:
    """IOMatch: p~_k ~ p_k (1/K + e) / (m_k + e), e = 1e-6, m the mean of all slots; and the state after this batch.

    The batch's own mean is written first, and never-written slots count in m.
    """
    means = state.means.clone()
    means[state.pointer] = p.mean(dim=0)
    scaled = p * (1.0 / p.shape[1] + ALIGN_EPS) / (means.mean(dim=0) + ALIGN_EPS)
    return scaled / scaled.sum(dim=1, keepdim=True), Alignment(means, (state.pointer + 1) % len(means))
