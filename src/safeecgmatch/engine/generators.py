"""Named random generators: every draw comes from (seed, purpose), and all states travel in the checkpoint."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def derived_seed(seed: int, purpose: str) -> int:
    """A 63-bit seed that depends on both and on nothing else (not on the platform, not on other purposes)."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


class Generators:
    """`generators("views")` is always the same generator; those for views live on the device of the batch."""

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self.seed = seed
        self.device = torch.device(device)
        self._made: dict[str, torch.Generator] = {}

    def __call__(self, purpose: str) -> torch.Generator:
        """A generator on the device of the batch, for views and noise."""
        return self._get(purpose, self.device)

    def on_cpu(self, purpose: str) -> torch.Generator:
        """A generator on the host, for index draws."""
        return self._get(purpose, torch.device("cpu"))

    def _get(self, purpose: str, device: torch.device) -> torch.Generator:
        if purpose not in self._made:
            generator = torch.Generator(device=device)
            generator.manual_seed(derived_seed(self.seed, purpose))
            self._made[purpose] = generator
        return self._made[purpose]

    def state(self) -> dict[str, Tensor]:
        return {purpose: generator.get_state() for purpose, generator in self._made.items()}

    def load(self, state: dict[str, Tensor], devices: dict[str, str] | None = None) -> None:
        """Put every saved generator back; one that did not exist yet starts as its seed says."""
        for purpose, saved in state.items():
            device = torch.device((devices or {}).get(purpose, "cpu"))
            self._get(purpose, device).set_state(saved)

    def devices(self) -> dict[str, str]:
        return {purpose: str(generator.device) for purpose, generator in self._made.items()}
