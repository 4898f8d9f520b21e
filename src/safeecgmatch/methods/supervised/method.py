"""Supervised: the labelled records alone, the floor that every semi-supervised method has to beat.

    L = mean CE(z(weak(x_l)), y)        paper Eq. (8)

All of the batch is labelled (64 records where the others take 32 + 32).
"""

from __future__ import annotations

from collections.abc import Iterator

from safeecgmatch.engine.contract import Batch, Losses
from safeecgmatch.engine.method import Hyper, SingleNetwork, Switches
from safeecgmatch.engine.views import weak
from safeecgmatch.methods.parts.losses import cross_entropy


class Supervised(SingleNetwork[Hyper, Switches]):
    uses_unlabelled = False

    def losses(self, batch: Batch, n: int) -> Iterator[Losses]:
        supervised = cross_entropy(self.network(weak(batch.x_l, self.rng("views"))), batch.y_l)
        yield Losses(supervised, {"supervised": supervised})


METHOD = Supervised
