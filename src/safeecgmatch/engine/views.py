"""Augmented views and spectra of whole batches (n, leads, samples), on the device of the batch.

Every random draw comes from the generator that is passed in; nothing loops over samples. Equation numbers are those of
the SafeECGMatch paper.
"""

from __future__ import annotations

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
