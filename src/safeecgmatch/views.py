"""Augmented views and spectra of whole batches (n, leads, samples), on the device of the batch.

Every random draw comes from the generator that is passed in; nothing loops over samples. Equation numbers are those of
the SafeECGMatch paper.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Generator, Tensor

GAIN_STD = 0.1
NOISE_STD = 0.01
SEGMENTS = 5
MASK_SHORTEST, MASK_LONGEST, MASK_RATE = 50, 200, 500  # samples, at this sampling rate
BAND_SHARE = 0.15
SPECTRUM_EPS = 1e-6


def standardise(x: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Each lead of each record to zero mean and unit population std over its valid samples (std 0 -> 1).

    Samples from `lengths` on are padding: they do not count and stay 0.
    """
    if lengths is None or bool((lengths >= x.shape[-1]).all()):
        std = x.std(dim=-1, correction=0, keepdim=True)
        return (x - x.mean(dim=-1, keepdim=True)) / torch.where(std > 0, std, torch.ones_like(std))
    valid = (torch.arange(x.shape[-1], device=x.device) < lengths[:, None, None]).to(x.dtype)
    count = lengths.to(x.dtype)[:, None, None]
    mean = (x * valid).sum(dim=-1, keepdim=True) / count
    centred = (x - mean) * valid
    std = (centred.square().sum(dim=-1, keepdim=True) / count).sqrt()
    return centred / torch.where(std > 0, std, torch.ones_like(std))


def weak(x: Tensor, generator: Generator) -> Tensor:
    """Eq. (4): y = a * x + e, a ~ N(1, 0.1^2) per lead, e ~ N(0, 0.01^2) per sample."""
    gain = torch.empty(*x.shape[:2], 1, dtype=x.dtype, device=x.device).normal_(1.0, GAIN_STD, generator=generator)
    noise = torch.empty_like(x).normal_(0.0, NOISE_STD, generator=generator)
    return noise.addcmul_(gain, x)


def strong(x: Tensor, generator: Generator, sampling_rate: int) -> Tensor:
    """Eq. (5): with probability 1/2 permute 5 segments, with probability 1/2 zero one interval, then weak."""
    return weak(mask_time(permute_segments(x, generator), generator, sampling_rate), generator)


def permute_segments(x: Tensor, generator: Generator, probability: float = 0.5) -> Tensor:
    """Cut into 5 equal segments and permute them, all leads alike, uniformly (identity included).

    Samples beyond the last whole segment stay at the end.
    """
    n, leads, samples = x.shape
    length = samples // SEGMENTS
    apply = torch.rand(n, device=x.device, generator=generator) < probability
    order = torch.rand(n, SEGMENTS, device=x.device, generator=generator).argsort(dim=1)
    order = torch.where(apply[:, None], order, torch.arange(SEGMENTS, device=x.device))
    segments = x[..., : SEGMENTS * length].reshape(n, leads, SEGMENTS, length)
    permuted = segments.gather(2, order[:, None, :, None].expand(n, leads, SEGMENTS, length))
    return torch.cat([permuted.reshape(n, leads, SEGMENTS * length), x[..., SEGMENTS * length :]], dim=-1)


def mask_time(x: Tensor, generator: Generator, sampling_rate: int, probability: float = 0.5) -> Tensor:
    """Zero one interval on all leads: 50 to 200 samples long at 500 Hz (scaled with the rate), start uniform.

    The start is drawn from {0..T-l-1}, so the last sample is never masked, as in the published code.
    """
    n, _, samples = x.shape
    shortest = max(1, round(MASK_SHORTEST * sampling_rate / MASK_RATE))
    longest = max(shortest, round(MASK_LONGEST * sampling_rate / MASK_RATE))
    apply = torch.rand(n, device=x.device, generator=generator) < probability
    length = torch.randint(shortest, longest + 1, (n,), device=x.device, generator=generator)
    start = uniform_below(samples - length, generator)
    time = torch.arange(samples, device=x.device)
    masked = apply[:, None] & (time >= start[:, None]) & (time < (start + length)[:, None])
    return x.masked_fill(masked[:, None, :], 0.0)


def uniform_below(bounds: Tensor, generator: Generator) -> Tensor:
    """One integer per entry, uniform on {0..bound-1}. Doubles keep the rounding bias below 2^-40."""
    share = torch.rand(bounds.shape, dtype=torch.float64, device=bounds.device, generator=generator)
    return torch.minimum((share * bounds).long(), bounds - 1)


def spectrum(x: Tensor) -> Tensor:
    """Eq. (1): magnitude of the unnormalised real FFT, DC kept; (n, leads, samples // 2 + 1)."""
    return torch.fft.rfft(x, dim=-1).abs()


def mask_band(spectra: Tensor, generator: Generator) -> Tensor:
    """Eq. (7): zero floor(0.15 L) consecutive bins on all leads, start uniform on {0..L-m-1}, per record."""
    n, _, bins = spectra.shape
    width = int(BAND_SHARE * bins)
    start = torch.randint(0, bins - width, (n,), device=spectra.device, generator=generator)
    position = torch.arange(bins, device=spectra.device)
    masked = (position >= start[:, None]) & (position < (start + width)[:, None])
    return spectra.masked_fill(masked[:, None, :], 0.0)


def amplitude_phase(transform: Tensor) -> Tensor:
    """TS-TFC's frequency input from an rFFT (n, leads, bins): channels amp_1, phase_1, amp_2, phase_2, ...

    amplitude = sqrt((Re + e)^2 + (Im + e)^2), phase = atan2(Im, Re + e), e = 1e-6; phase in (-pi, pi].
    """
    real, imaginary = transform.real + SPECTRUM_EPS, transform.imag
    amplitude = torch.hypot(real, imaginary + SPECTRUM_EPS)
    phase = torch.atan2(imaginary, real)
    return torch.stack([amplitude, phase], dim=2).flatten(1, 2)


# CompleMatch: two more views per domain. Their draws are functions of (seed, record, view, lead, position), so that a
# record looks the same in every iteration without being stored.

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


# ECGMatch's own augmentation: one choice for the whole batch.

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
