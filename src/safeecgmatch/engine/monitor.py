"""What happened since the last evaluation, summed on the device so that no iteration waits for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from safeecgmatch.engine.contract import Losses


class Monitor:
    """Mean losses, share of accepted unlabelled records, and how many of those are right, or unseen taken for seen.

    Hidden labels of the pool are read here and nowhere else in training.
    """

    def __init__(self) -> None:
        self.iterations = 0
        self.sums: dict[str, Tensor] = {}

    def add(self, losses: Losses, hidden: Tensor, num_classes: int) -> None:
        self._add("loss.total", losses.total)
        for name, value in losses.terms.items():
            self._add(f"loss.{name}", value)
        for name, value in losses.rates.items():
            self._add(f"rate.{name}", value)
        if losses.accepted is not None and losses.pseudo is not None:
            accepted = losses.accepted
            self._add("offered", torch.tensor(len(accepted), device=accepted.device))
            self._add("accepted", accepted.sum())
            self._add("right", (accepted & (losses.pseudo == hidden)).sum())
            taken_for_seen = accepted & (losses.pseudo < num_classes)  # SCOMatch has a pseudo-label "unseen" as well
            self._add("unseen", (taken_for_seen & (hidden == num_classes)).sum())

    def _add(self, name: str, value: Tensor) -> None:
        value = value.detach().to(torch.float64)
        self.sums[name] = self.sums[name] + value if name in self.sums else value

    def diverged(self) -> bool:
        return "loss.total" in self.sums and not bool(torch.isfinite(self.sums["loss.total"]))

    def summary(self) -> dict[str, float | None]:
        """The means since the last `clear`; None where nothing was accepted."""
        sums = {name: float(value) for name, value in self.sums.items()}
        row: dict[str, float | None] = {
            name.removeprefix("rate."): value / max(self.iterations, 1)
            for name, value in sums.items()
            if name.startswith(("loss.", "rate."))
        }
        if "offered" in sums:
            accepted = sums["accepted"]
            row["mask_rate"] = accepted / sums["offered"]
            row["pseudo_accuracy"] = sums["right"] / accepted if accepted else None
            row["pseudo_ood_share"] = sums["unseen"] / accepted if accepted else None
        return row

    def clear(self) -> None:
        self.iterations, self.sums = 0, {}

    def state(self) -> dict[str, Any]:
        return {"iterations": self.iterations, "sums": self.sums}

    def load(self, state: dict[str, Any]) -> None:
        self.iterations, self.sums = state["iterations"], dict(state["sums"])
