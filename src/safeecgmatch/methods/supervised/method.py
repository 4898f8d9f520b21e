"""Supervised: the labelled records alone, the floor that every semi-supervised method has to beat.

    L = mean CE(z(weak(x_l)), y)        paper Eq. (8)

All of the batch is labelled (64 records where the others take 32 + 32).
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from safeecgmatch.engine.contract import Batch, Losses, Outputs, Prediction
from safeecgmatch.engine.models import ResNet1D
from safeecgmatch.engine.views import weak
from safeecgmatch.methods.base import Context, Method
from safeecgmatch.methods.parts.losses import cross_entropy


class Supervised(Method):
    uses_unlabelled = False

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.network = ResNet1D(self.setting.leads, self.setting.num_classes, self.setting.width)

    def losses(self, batch: Batch, n: int) -> Iterator[Losses]:
        supervised = cross_entropy(self.network(weak(batch.x_l, self.rng("views"))), batch.y_l)
        yield Losses(supervised, {"supervised": supervised})

    def outputs(self, x: Tensor) -> Outputs:
        return {"class_logits.main": self.network(x)}

    def predict(self, outputs: Outputs) -> dict[str, Prediction]:
        return {"main": Prediction(outputs["class_logits.main"].log_softmax(dim=1))}


METHOD = Supervised
