"""ECGMatch's own augmentations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from safeecgmatch.engine.views import uniform_below

NOISE_WEAK, NOISE_STRONG = 0.05, 0.5


def time_flip(x: Tensor) -> Tensor:
    return x.flip(-1)


def burst_dropout(x: Tensor, generator: Generator) -> Tensor:
    """Per lead, zero [c - l, c + l): l uniform on {0..T/2-1}, c uniform on {l..T-l-1}."""
    samples = x.shape[-1]
    half = torch.randint(0, samples // 2, x.shape[:2], device=x.device, generator=generator)
    centre = half + uniform_below(samples - 2 * half, generator)
    time = torch.arange(samples, device=x.device)
    dropped = (time >= (centre - half)[..., None]) & (time < (centre + half)[..., None])
    return x.masked_fill(dropped, 0.0)


def gaussian_noise(x: Tensor, generator: Generator, std: float) -> Tensor:
    return x + torch.empty_like(x).normal_(0.0, std, generator=generator)


def permute_leads(x: Tensor, generator: Generator) -> Tensor:
    """One permutation for the whole batch."""
    return x[:, torch.randperm(x.shape[1], device=x.device, generator=generator)]


def ecg_augment(x: Tensor, generator: Generator, strength: str) -> Tensor:
    """Weak: one of flip, dropout, noise, lead permutation. Strong: the distinct ones of four draws, in random order."""
    std = NOISE_WEAK if strength == "weak" else NOISE_STRONG
    operations: list[Callable[[Tensor], Tensor]] = [
        time_flip,
        lambda y: burst_dropout(y, generator),
        lambda y: gaussian_noise(y, generator, std),
        lambda y: permute_leads(y, generator),
    ]
    draws = torch.randint(0, 4, (1 if strength == "weak" else 4,), device=x.device, generator=generator)
    # Order of first appearance among independent draws is a uniformly random order of the distinct ones.
    for choice in dict.fromkeys(draws.tolist()):
        x = operations[choice](x)
    return x
