"""Which records an iteration sees: endless permutations, or the published code's one fixed order."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Generator, Tensor

RELEASE_ORDER_SEED = 0  # the published sampler re-seeds its private generator with 0 in every epoch


class Stream(Protocol):
    """An endless sequence of index batches whose place can be saved and restored."""

    def next(self) -> Tensor: ...

    def state(self) -> dict[str, Any]: ...

    def load(self, state: dict[str, Any]) -> None: ...


class PermutationStream:
    """Fresh permutations of 0..n-1 glued together and cut into batches that may straddle a border."""

    def __init__(self, n: int, batch: int, generator: Generator) -> None:
        self.n, self.batch, self.generator = n, batch, generator
        self.rest = torch.empty(0, dtype=torch.int64)

    def next(self) -> Tensor:
        while len(self.rest) < self.batch:
            self.rest = torch.cat([self.rest, torch.randperm(self.n, generator=self.generator)])
        head, self.rest = self.rest[: self.batch], self.rest[self.batch :]
        return head

    def state(self) -> dict[str, Any]:
        """Without the generator, whose state the loop saves with all others."""
        return {"rest": self.rest.clone()}

    def load(self, state: dict[str, Any]) -> None:
        self.rest = state["rest"]


def fixed_order(n: int, total: int) -> Tensor:
    """The published epoch: whole permutations of 0..n-1 and the head of one more, from a generator seeded with 0."""
    generator = torch.Generator().manual_seed(RELEASE_ORDER_SEED)
    rounds = -(-total // n)
    return torch.cat([torch.randperm(n, generator=generator) for _ in range(rounds)])[:total]


class FixedOrderStream:
    """The same `epoch` batches again and again, whatever the run seed."""

    def __init__(self, n: int, batch: int, epoch: int) -> None:
        self.batch, self.epoch = batch, epoch
        self.order = fixed_order(n, batch * epoch)
        self.position = 0

    def next(self) -> Tensor:
        start = self.position * self.batch
        self.position = (self.position + 1) % self.epoch
        return self.order[start : start + self.batch]

    def state(self) -> dict[str, Any]:
        return {"position": self.position}

    def load(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


def make_stream(order: str, n: int, batch: int, epoch: int, generator: Generator) -> Stream:
    return FixedOrderStream(n, batch, epoch) if order == "fixed" else PermutationStream(n, batch, generator)
