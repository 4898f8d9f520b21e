"""Views: distributions where they are random, exactness where they are not."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
import torch

from safeecgmatch.engine.views import (
    amplitude_phase,
    mask_band,
    mask_time,
    permute_segments,
    spectrum,
    standardise,
    strong,
    uniform_below,
    weak,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_weak_has_the_gain_and_noise_of_the_paper():
    x = torch.ones(400, 12, 200, dtype=torch.float64)
    y = weak(x, generator())
    gains = y.mean(dim=-1)
    noise = y - gains[..., None]
    assert gains.mean() == pytest.approx(1.0, abs=0.005)
    assert gains.std() == pytest.approx(0.1, rel=0.05)
    assert noise.std() == pytest.approx(0.01, rel=0.02)
    # One gain per lead, not per record: leads of a record are independent.
    assert abs(np.corrcoef(gains[:, 0], gains[:, 1])[0, 1]) < 0.15


def test_weak_leaves_its_input_alone():
    x = torch.randn(3, 12, 50, generator=generator(1))
    before = x.clone()
    weak(x, generator())
    assert torch.equal(x, before)


def test_permutation_is_uniform_over_all_orders_and_keeps_the_tail():
    n, length = 6000, 3
    x = torch.arange(5).repeat_interleave(length).float().repeat(n, 2, 1)
    x = torch.cat([x, torch.full((n, 2, 2), 9.0)], dim=-1)
    y = permute_segments(x, generator(), probability=1.0)
    assert torch.equal(y[..., -2:], x[..., -2:])
    assert torch.equal(y[:, 0], y[:, 1])
    orders = y[:, 0, : 5 * length : length].long()
    assert torch.equal(y[:, 0, : 5 * length], orders.repeat_interleave(length, dim=1).float())
    names = (orders * torch.tensor([10000, 1000, 100, 10, 1])).sum(dim=1)
    counts = torch.stack([(names == int("".join(map(str, order)))).sum() for order in permutations(range(5))])
    assert counts.sum() == n
    chi_square = ((counts - n / 120) ** 2 / (n / 120)).sum()
    assert chi_square < 119 + 5 * math.sqrt(2 * 119)


def test_permutation_happens_half_of_the_time():
    x = torch.randn(4000, 1, 10, generator=generator(2))
    y = permute_segments(x, generator())
    changed = (x != y).any(dim=-1).float().mean()
    assert changed == pytest.approx(0.5 * 119 / 120, abs=0.03)


@pytest.mark.parametrize(("rate", "shortest", "longest"), [(500, 50, 200), (100, 10, 40)])
def test_time_mask_length_and_place(rate, shortest, longest):
    samples = 10 * rate
    x = torch.ones(3000, 2, samples)
    y = mask_time(x, generator(), rate, probability=1.0)
    masked = y == 0
    assert torch.equal(masked[:, 0], masked[:, 1])
    lengths = masked[:, 0].sum(dim=1)
    assert lengths.min() == shortest and lengths.max() == longest
    assert lengths.float().mean() == pytest.approx((shortest + longest) / 2, rel=0.02)
    starts = masked[:, 0].float().argmax(dim=1)
    edges = masked[:, 0, 1:].float() - masked[:, 0, :-1].float()
    assert (edges == 1).sum(dim=1).max() <= 1 and (edges == -1).sum(dim=1).max() <= 1
    assert starts.float().mean() == pytest.approx((samples - (shortest + longest) / 2) / 2, rel=0.04)
    assert not masked[:, 0, -1].any(), "the last sample is never masked, as in the published code"


def test_time_mask_happens_half_of_the_time():
    y = mask_time(torch.ones(4000, 1, 1000), generator(), 100)
    assert (y == 0).any(dim=-1).float().mean() == pytest.approx(0.5, abs=0.03)


def test_uniform_below_reaches_every_value_and_no_other():
    bounds = torch.tensor([1, 2, 5]).repeat(3000, 1)
    drawn = uniform_below(bounds, generator())
    for column, bound in enumerate([1, 2, 5]):
        counts = torch.bincount(drawn[:, column], minlength=bound).float()
        assert len(counts) == bound
        assert torch.allclose(counts / 3000, torch.full((bound,), 1 / bound), atol=0.04)


def test_strong_is_made_of_permutation_mask_and_weak():
    x = torch.ones(2000, 12, 1000)
    y = strong(x, generator(), 100)
    silent = y.abs().mean(dim=1) < 0.05
    assert silent.any(dim=1).float().mean() == pytest.approx(0.5, abs=0.04)


def test_spectrum_is_the_unnormalised_magnitude():
    time = torch.arange(1000, dtype=torch.float64) / 100
    x = (3.0 + 2.0 * torch.sin(2 * math.pi * 5 * time)).repeat(1, 12, 1)
    s = spectrum(x)
    assert s.shape == (1, 12, 501)
    assert s[0, 0, 0] == pytest.approx(3000)
    assert s[0, 0, 50] == pytest.approx(1000)
    assert torch.allclose(s, torch.from_numpy(np.abs(np.fft.rfft(x.numpy()))))


def test_band_mask_width_and_place():
    bins = 501
    y = mask_band(torch.ones(4000, 2, bins), generator())
    masked = y[:, 0] == 0
    width = int(0.15 * bins)
    assert (masked.sum(dim=1) == width).all()
    assert torch.equal(y[:, 0], y[:, 1])
    starts = masked.float().argmax(dim=1)
    assert starts.min() <= 2 and starts.max() >= bins - width - 3
    assert starts.max() <= bins - width - 1
    assert starts.float().mean() == pytest.approx((bins - width - 1) / 2, rel=0.04)


def test_band_mask_of_the_paper_is_375_of_2501_bins():
    masked = mask_band(torch.ones(50, 1, 2501), generator()) == 0
    assert (masked.sum(dim=-1) == 375).all()


def test_amplitude_and_phase_alternate():
    x = torch.randn(2, 12, 100, generator=generator(3), dtype=torch.float64)
    transform = torch.fft.rfft(x)
    y = amplitude_phase(transform)
    assert y.shape == (2, 24, 51)
    assert torch.allclose(y[:, 0::2], transform.abs(), atol=1e-4)
    assert torch.allclose(y[:, 1::2], transform.angle(), atol=1e-3)


def test_standardise_ignores_padding_and_flat_leads():
    x = torch.randn(2, 3, 100, generator=generator(4), dtype=torch.float64) * 5 + 2
    x[1, :, 60:] = 0
    x[0, 2] = 7.0
    y = standardise(x, torch.tensor([100, 60]))
    assert torch.allclose(y[0, :2].mean(dim=-1), torch.zeros(2, dtype=torch.float64), atol=1e-9)
    assert torch.allclose(y[0, :2].std(dim=-1, correction=0), torch.ones(2, dtype=torch.float64))
    assert torch.equal(y[0, 2], torch.zeros(100, dtype=torch.float64))
    assert torch.allclose(y[1, :, :60].std(dim=-1, correction=0), torch.ones(3, dtype=torch.float64))
    assert (y[1, :, 60:] == 0).all()
    assert torch.allclose(standardise(x[:1], torch.tensor([100])), standardise(x[:1]))


@pytest.mark.parametrize("view", [weak, lambda x, g: strong(x, g, 100), permute_segments, mask_band])
def test_same_generator_same_view(view):
    x = torch.randn(4, 12, 100, generator=generator(5))
    assert torch.equal(view(x, generator(6)), view(x, generator(6)))
    assert not torch.equal(view(x, generator(6)), view(x, generator(7)))
