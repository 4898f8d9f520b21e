"""Label propagation in closed form over the queue of two co-trained branches (TS-TFC, CompleMatch).

Labels are -1 where a node has none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def propagate_closed_form(
    embeddings: Tensor, labels: Tensor, num_classes: int, k: int, sigma: float, alpha: float
) -> Tensor:
    """F = (I - alpha S)^-1 Y in double precision, S = D^-1/2 W D^-1/2 (Zhou et al. 2004; TS-TFC).

    W_ij = exp(-0.5 mean_d ((v_id - v_jd) / sigma)^2), kept where j is among the k largest of row i (itself included)
    or the other way round.
    """
    scaled = embeddings.double() / sigma
    # Differences, not |a|^2 + |b|^2 - 2ab: cancellation would let W_ii differ from 1.
    distances = (scaled[:, None, :] - scaled[None, :, :]).square().mean(dim=2)
    kernel = torch.exp(-0.5 * distances)
    # A node is always its own neighbour, even among more than k equal ones.
    nearest = distances.fill_diagonal_(-1.0).topk(min(k, len(kernel)), dim=1, largest=False).indices
    kept = torch.zeros_like(kernel, dtype=torch.bool).scatter_(1, nearest, True)
    kernel = kernel * (kept | kept.T)
    root = kernel.sum(dim=0).rsqrt()
    system = torch.eye(len(kernel), dtype=kernel.dtype, device=kernel.device) - alpha * (
        root[:, None] * kernel * root[None, :]
    )
    return torch.linalg.solve(system, _one_hot(labels, num_classes, kernel.dtype))


def _one_hot(labels: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    """Zero rows for nodes without a label."""
    return (labels[:, None] == torch.arange(num_classes, device=labels.device)).to(dtype)


@dataclass(frozen=True)
class PseudoLabels:
    labels: Tensor  # (n,) int64
    accepted: Tensor  # (n,) bool

    @classmethod
    def none_of(cls, rows: Tensor) -> PseudoLabels:
        """One row for each of `rows`, none accepted."""
        labels = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        return cls(labels, labels.bool())


def curriculum(scores: Tensor, unlabelled: Tensor, cutoff: float) -> PseudoLabels:
    """Accept node i of class c = argmax F_i if max softmax(F_i) >= cutoff b_c / (2 - b_c) (TS-TFC, CompleMatch).

    b_c = n_c / max(1, max n), n_c = unlabelled nodes whose arg max is c: classes seen rarely get a lower bar.
    """
    labels = scores.argmax(dim=1)
    counts = (_one_hot(labels, scores.shape[1], scores.dtype) * unlabelled[:, None]).sum(dim=0)
    share = counts / counts.max().clamp(min=1)
    bar = cutoff * share / (2 - share)
    return PseudoLabels(labels, scores.softmax(dim=1).amax(dim=1) >= bar[labels])


@dataclass(frozen=True)
class Queue:
    """The last `length` batches of one branch in co-training, newest last: projections, and labels (-1: none)."""

    length: int
    projections: tuple[Tensor, ...] = ()
    labels: tuple[Tensor, ...] = ()

    def push(self, projections: Tensor, labels: Tensor) -> Queue:
        return replace(
            self,
            projections=(*self.projections, projections.detach())[-self.length :],
            labels=(*self.labels, labels)[-self.length :],
        )

    def state(self) -> dict[str, list[Tensor]]:
        return {"projections": list(self.projections), "labels": list(self.labels)}

    def restored(self, state: dict[str, list[Tensor]], device: torch.device) -> Queue:
        projections, labels = (tuple(part.to(device) for part in state[name]) for name in ("projections", "labels"))
        return replace(self, projections=projections, labels=labels)


@dataclass(frozen=True)
class Propagation:
    """How pseudo-labels come from a full queue: closed form, then curriculum selection."""

    num_classes: int
    k: int
    sigma: float
    alpha: float
    cutoff: float

    def pseudo_labels(self, queue: Queue, unlabelled: int) -> PseudoLabels:
        """For the newest batch's last rows, its `unlabelled` ones; none is accepted while the queue is not full.

        Their number is known without asking the device which rows have a label.
        """
        if len(queue.labels) < queue.length:
            return PseudoLabels.none_of(queue.labels[-1][-unlabelled:])
        labels = torch.cat(queue.labels)
        nodes = torch.cat(queue.projections)
        scores = propagate_closed_form(nodes, labels, self.num_classes, self.k, self.sigma, self.alpha)
        selected = curriculum(scores, labels < 0, self.cutoff)
        return PseudoLabels(selected.labels[-unlabelled:], selected.accepted[-unlabelled:])


class CoTraining:
    """The queues of a time and a frequency branch, and the pseudo-labels that each finds (TS-TFC, CompleMatch)."""

    BRANCHES = ("time", "freq")

    def __init__(self, time: Propagation, freq: Propagation, length: int) -> None:
        self.propagation = {"time": time, "freq": freq}
        self.queues = {name: Queue(length) for name in self.BRANCHES}

    def pseudo_labels(self, projections: dict[str, Tensor], labels: Tensor) -> dict[str, PseudoLabels]:
        """Push this batch (labelled rows first, then unlabelled ones), and label its unlabelled rows in each branch."""
        missing = labels.new_full((len(projections["time"]) - len(labels),), -1)
        labels = torch.cat([labels, missing])
        self.queues = {name: queue.push(projections[name], labels) for name, queue in self.queues.items()}
        return {name: self.propagation[name].pseudo_labels(queue, len(missing)) for name, queue in self.queues.items()}

    def state(self) -> dict[str, Any]:
        return {name: queue.state() for name, queue in self.queues.items()}

    def load(self, state: dict[str, Any], device: torch.device) -> None:
        self.queues = {name: queue.restored(state[name], device) for name, queue in self.queues.items()}


def better_branch(outputs: dict[str, Tensor], labels: Tensor) -> int:
    """0 (time) or 1 (frequency), by accuracy of the class logits on validation; time wins a tie."""
    right = [(outputs[f"class_logits.{name}"].argmax(dim=1) == labels).sum() for name in CoTraining.BRANCHES]
    return int((right[1] > right[0]).item())


def shared_cross_entropy(logits: Tensor, labels: Tensor, pseudo: Tensor, accepted: Tensor) -> Tensor:
    """Co-training: one mean over the labelled rows (first) and the accepted unlabelled rows (with hard labels)."""
    rows = F.cross_entropy(logits, torch.cat([labels, pseudo]), reduction="none")
    counts = torch.cat([torch.ones_like(labels, dtype=torch.bool), accepted])
    return (rows * counts).sum() / counts.sum()
