"""CompleMatch's own views, from draws that are a hash of (seed, record, view)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

KNOTS = 6

_MASK32 = 0xFFFFFFFF


def hashed_uniform(seed: int, records: Tensor, view: int, rows: int, columns: int) -> Tensor:
    """Draws from U(0, 1), (n, rows, columns), that depend on their arguments and indices alone; doubles."""
    state = _mix(torch.full_like(records, seed & _MASK32) + (seed >> 32 & _MASK32) * 0x9E3779B9 + view * 0x85EBCA6B)
    for bits in (records & _MASK32, records >> 32 & _MASK32):
        state = _mix(state ^ _mix(bits))
    for count in (rows, columns):
        index = _mix(torch.arange(1, count + 1, device=records.device) * 0x9E3779B9)
        state = _mix(state[..., None] ^ index)
    return (state.double() + 0.5) / 2**32


def _mix(value: Tensor) -> Tensor:
    """A bijection of 32-bit integers (held in 64 bits) in which every input bit moves every output bit."""
    value = value & _MASK32
    value = ((value ^ value >> 16) * 0x7FEB352D) & _MASK32
    value = ((value ^ value >> 15) * 0x846CA68B) & _MASK32
    return value ^ value >> 16


def hashed_normal(seed: int, records: Tensor, view: int, rows: int, columns: int, std: float) -> Tensor:
    """Draws from N(1, std^2), as `hashed_uniform`."""
    return 1.0 + std * torch.special.ndtri(hashed_uniform(seed, records, view, rows, columns))


def pool_pairs(x: Tensor) -> Tensor:
    """Each two neighbouring samples become their mean; the length stays, a trailing odd sample too."""
    even = x.shape[-1] // 2 * 2
    means = x[..., :even].unflatten(-1, (-1, 2)).mean(dim=-1)
    return torch.cat([means.repeat_interleave(2, dim=-1), x[..., even:]], dim=-1)


@lru_cache
def spline_matrix(samples: int) -> Tensor:
    """(samples, 6): the not-a-knot cubic spline through six equally spaced knots is linear in its knot values."""

    def basis(times: np.ndarray) -> np.ndarray:
        """With not-a-knot ends only the two middle knots break the cubic: four powers, two truncated ones."""
        powers = [times**degree for degree in range(4)]
        return np.stack([*powers, *(np.maximum(times - knot, 0) ** 3 for knot in (2, 3))], axis=1)

    times = np.linspace(0, KNOTS - 1, samples)  # in units of the knots' spacing
    return torch.from_numpy(basis(times) @ np.linalg.inv(basis(np.arange(KNOTS, dtype=np.float64))))


def time_warp(x: Tensor, factors: Tensor) -> Tensor:
    """Resample x as if its samples had been taken at times spline(knot * factor), per lead; factors (n, leads, 6).

    The times are scaled to end at T - 1, cut to [0, T - 1] and made non-decreasing by a running maximum.
    """
    samples = x.shape[-1]
    knots = torch.linspace(0, samples - 1, KNOTS, dtype=torch.float64, device=x.device)
    times = (factors * knots).to(torch.float64) @ spline_matrix(samples).to(x.device).T
    times = (times * ((samples - 1) / times[..., -1:])).clamp(0, samples - 1).cummax(dim=-1).values
    # The last sample taken at or before each whole time: whole times count the rounded-up sample times below them.
    arrivals = torch.zeros(times.shape, dtype=torch.int64, device=x.device)
    arrivals.scatter_add_(-1, times.ceil().long(), torch.ones_like(arrivals))
    left = (arrivals.cumsum(dim=-1) - 1).clamp(0, samples - 1)
    right = (left + 1).clamp(max=samples - 1)
    start, end = times.gather(-1, left), times.gather(-1, right)
    grid = torch.arange(samples, device=x.device)
    share = ((grid - start) / (end - start).clamp(min=1e-12)).clamp(0, 1) * (right > left)
    return torch.lerp(x.gather(-1, left), x.gather(-1, right), share.to(x.dtype))


def magnitude_warp(x: Tensor, factors: Tensor) -> Tensor:
    """Multiply each lead by the spline through its six factors."""
    return x * (factors.to(torch.float64) @ spline_matrix(x.shape[-1]).to(x.device).T).to(x.dtype)


def low_pass(transform: Tensor, samples: int, cutoff: float = 0.4) -> Tensor:
    """Zero the bins of an rFFT with index / samples >= cutoff (cycles per sample)."""
    kept = torch.arange(transform.shape[-1], device=transform.device).double() / samples < cutoff
    return transform * kept


def drop_bins(spectra: Tensor, dropped: Tensor) -> Tensor:
    """Replace each dropped bin after the first by the original value of its left neighbour."""
    return torch.cat([spectra[..., :1], torch.where(dropped[..., 1:], spectra[..., :-1], spectra[..., 1:])], dim=-1)
