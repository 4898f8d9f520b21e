"""What happened since the last evaluation, summed on the device so that no iteration waits for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from safeecgmatch.engine.contract import TEMPERATURE_BOUNDS, Losses


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
        return "loss.total" in self.sums and not torch.isfinite(self.sums["loss.total"]).item()

    def interval(self, n: int) -> str:
        """Since the last `clear`, where `n` iterations are made."""
        return f"between iterations {n - self.iterations + 1} and {n}"

    def summary(self) -> dict[str, float | None]:
        """The means since the last `clear`; None where nothing was accepted."""
        sums = {name: value.item() for name, value in self.sums.items()}
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


def temperatures_at_bound(row: Mapping[str, Any]) -> list[str]:
    """The temperatures of an evaluation that are at an end of their range, or beyond it, within 1 %."""
    low, high = TEMPERATURE_BOUNDS
    found = {name: value for name, value in row.items() if name.startswith("temperature.")}
    return [name for name, value in found.items() if value <= 1.01 * low or value >= 0.99 * high]


def accepted_nothing(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """The rates of accepted pseudo-labels that were 0 at every evaluation."""
    names = sorted({name for row in history for name in row if name.split(".")[0] == "mask_rate"})
    return [name for name in names if not any(row.get(name) for row in history)]


def warnings_of(history: Sequence[Mapping[str, Any]], chosen: int) -> list[str]:
    """What a reader of the final numbers should know; `chosen` is the iteration whose weights are tested."""
    idle = [f"No unlabelled record was accepted in the whole run ({name} is 0)." for name in accepted_nothing(history)]
    row = next((row for row in history if row["iteration"] == chosen), {})
    low, high = TEMPERATURE_BOUNDS
    return idle + [
        f"{name} is {row[name]:.3g} at the chosen iteration {chosen}, the end of its range [{low:g}, {high:g}]."
        for name in temperatures_at_bound(row)
    ]
