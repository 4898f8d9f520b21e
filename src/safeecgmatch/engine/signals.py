"""Records as batches on the device: an index gather from the mapped store, nothing per sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from safeecgmatch.engine.signal_store import SignalStore
from safeecgmatch.engine.views import standardise

MILLIVOLTS = 1e-3  # the store holds microvolts


class SignalSource:
    """The signal store as seen from a device: mapped on the host, or resident on the device where it fits."""

    def __init__(self, store: SignalStore, device: torch.device, resident: bool = False) -> None:
        self.store = store
        self.device = device
        self._lengths = torch.from_numpy(store.lengths).to(device)
        self._resident = torch.from_numpy(np.asarray(store.signals)).to(device) if resident else None

    def gather(self, rows: Tensor) -> Tensor:
        """Rows of the store as float32 millivolts (n, leads, samples) on the device."""
        if self._resident is not None:
            raw = self._resident[rows.to(self.device)]
        else:
            raw = torch.from_numpy(self.store.gather(rows.cpu().numpy())).to(self.device)
        x = raw.to(torch.float32).mul_(MILLIVOLTS)
        return standardise(x, self._lengths[rows.to(self.device)]) if self.store.standardise else x


@dataclass(frozen=True)
class SignalSet:
    """An ordered list of rows of the store; `labels` is None where a method must not see them."""

    source: SignalSource
    rows: Tensor  # (n,) int64, host
    labels: Tensor | None  # (n,) int64, device

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, positions: Tensor) -> Tensor:
        return self.source.gather(self.rows[positions.cpu()])

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """(positions, records) over the whole set, in order."""
        for positions in torch.arange(len(self)).split(size):
            yield positions, self.batch(positions)

    def without_labels(self) -> SignalSet:
        return SignalSet(self.source, self.rows, None)


@dataclass(frozen=True)
class MethodData:
    """What a method may look at: labelled records, the pool without its hidden labels, and validation."""

    labelled: SignalSet
    pool: SignalSet
    validation: SignalSet
