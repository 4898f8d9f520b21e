"""The views of CompleMatch, TS-TFC and ECGMatch: values where the original gives them, distributions elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.interpolate import CubicSpline
from torch import Tensor

from safeecgmatch.engine.views import amplitude_phase, spectrum
from safeecgmatch.methods.complematch.views import (
    drop_bins,
    hashed_normal,
    hashed_uniform,
    low_pass,
    magnitude_warp,
    pool_pairs,
    spline_matrix,
    time_warp,
)
from safeecgmatch.methods.ecgmatch import views as ecg_views
from safeecgmatch.methods.ecgmatch.views import burst_dropout, ecg_augment, gaussian_noise, permute_leads, time_flip
from tests.vectors import load_vector

AUGMENT = load_vector("complematch_original_augment")


def close(actual: Tensor, expected: object, atol: float = 1e-5, rtol: float = 1e-4) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), atol=atol, rtol=rtol)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_amplitude_and_phase() -> None:
    vector = load_vector("tstfc_original_freq_input")
    x = torch.tensor(vector["x"])[:, None, :]
    close(amplitude_phase(torch.fft.rfft(x)), vector["output"], vector["atol"], vector["rtol"])


def test_channels_alternate_amplitude_and_phase_by_lead() -> None:
    x = torch.randn(3, 12, 100, generator=generator())
    both = amplitude_phase(torch.fft.rfft(x))
    assert both.shape == (3, 24, 51)
    for lead in (0, 7):
        alone = amplitude_phase(torch.fft.rfft(x[:, lead : lead + 1]))
        torch.testing.assert_close(both[:, 2 * lead : 2 * lead + 2], alone)


def test_magnitude_spectrum_of_the_release() -> None:
    vector = load_vector("tstfc_release_predict")
    close(spectrum(torch.tensor(vector["x"])), vector["freq_input"], vector["atol"], vector["rtol"])


@pytest.mark.parametrize(("source", "expected"), [("x", "pool_size_2"), ("x_len9", "pool_size_2_len9")])
def test_pooling(source: str, expected: str) -> None:
    close(pool_pairs(torch.tensor(AUGMENT[source], dtype=torch.float64)), AUGMENT[expected])


@pytest.mark.parametrize(
    ("warp", "draws", "expected"),
    [
        (time_warp, "np_normal_draws_used_by_warps_row0_row1", "time_warp_sigma_0.1_npseed0"),
        (magnitude_warp, "np_normal_draws_sigma0.05", "magnitude_warp_sigma_0.05_npseed0"),
    ],
)
def test_warps(warp: Callable[[Tensor, Tensor], Tensor], draws: str, expected: str) -> None:
    x, factors = (torch.tensor(AUGMENT[name], dtype=torch.float64)[None] for name in ("x", draws))
    close(warp(x, factors), [AUGMENT[expected]])


def test_spline_is_scipys_not_a_knot_spline() -> None:
    values = np.random.default_rng(0).normal(1, 0.1, 6)
    expected = CubicSpline(np.linspace(0, 999, 6), values)(np.arange(1000))
    np.testing.assert_allclose(spline_matrix(1000).numpy() @ values, expected, atol=1e-12)


def test_time_warp_follows_numpy_on_long_records() -> None:
    factors = 1 + 0.1 * torch.randn(20, 2, 6, generator=generator(), dtype=torch.float64)
    x = torch.randn(20, 2, 501, generator=generator(), dtype=torch.float64)
    warped = time_warp(x, factors)
    knots = np.linspace(0, 500, 6)
    for record in range(20):
        for lead in range(2):
            times = CubicSpline(knots, knots * factors[record, lead].numpy())(np.arange(501))
            times = np.maximum.accumulate(np.clip(times * 500 / times[-1], 0, 500))
            # Beyond the first sample that reached the end, numpy has no single answer.
            inside = np.arange(501) < 500
            expected = np.interp(np.arange(501), times, x[record, lead].numpy())
            if np.all(np.diff(times) > 0):
                np.testing.assert_allclose(warped[record, lead][inside], expected[inside], atol=1e-9)
    assert torch.isfinite(warped).all() and warped.abs().max() <= x.abs().max()


def test_unit_factors_leave_a_record_alone() -> None:
    x = torch.randn(2, 3, 1000, generator=generator())
    torch.testing.assert_close(time_warp(x, torch.ones(2, 3, 6)), x, atol=1e-5, rtol=0)
    torch.testing.assert_close(magnitude_warp(x, torch.ones(2, 3, 6)), x)


def test_low_pass_gives_the_originals_signal() -> None:
    x = torch.tensor(AUGMENT["x"])
    close(torch.fft.irfft(low_pass(torch.fft.rfft(x), 10), n=10), AUGMENT["lowpass_cutoff_0.4"])


def test_low_pass_cuts_at_bin_2000_of_5000_samples() -> None:
    spectra = amplitude_phase(low_pass(torch.ones(1, 1, 2501, dtype=torch.complex64), 5000))
    assert (spectra[0, 0, :2000] > 1).all()
    torch.testing.assert_close(spectra[0, 0, 2000:], torch.full((501,), 2**0.5 * 1e-6))
    assert (spectra[0, 1, 2000:] == 0).all()


def test_dropped_bins_take_the_original_left_neighbour() -> None:
    spectra = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    dropped = torch.tensor([[[True, False, True, True]]])
    assert drop_bins(spectra, dropped).tolist() == [[[1.0, 2.0, 2.0, 3.0]]]


def test_hashed_draws_are_uniform_and_independent() -> None:
    draws = hashed_uniform(7, torch.arange(400), 1, 12, 50)
    assert draws.shape == (400, 12, 50) and draws.min() > 0 and draws.max() < 1
    share = torch.histc(draws, 20, 0, 1) / draws.numel()
    torch.testing.assert_close(share, torch.full_like(share, 0.05), atol=0.0015, rtol=0)  # 240,000 draws: 3.4 sigma
    for axis in range(3):  # neighbours along any index are uncorrelated
        first, second = draws.narrow(axis, 0, draws.shape[axis] - 1), draws.narrow(axis, 1, draws.shape[axis] - 1)
        correlation = torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]
        assert abs(float(correlation)) < 0.01


def test_hashed_draws_depend_on_every_argument_and_on_nothing_else() -> None:
    records = torch.tensor([5, 9, 5])
    draws = hashed_uniform(7, records, 1, 2, 3)
    assert torch.equal(draws[0], draws[2]) and not torch.equal(draws[0], draws[1])
    assert torch.equal(draws[1:2], hashed_uniform(7, torch.tensor([9]), 1, 2, 3))
    assert torch.equal(draws, hashed_uniform(7, records, 1, 4, 9)[:, :2, :3])
    for other in [(8, 1), (7, 2), (7 + 2**32, 1)]:
        assert not (hashed_uniform(other[0], records, other[1], 2, 3) == draws).any()


def test_hashed_normals() -> None:
    draws = hashed_normal(3, torch.arange(2000), 2, 12, 6, std=0.1)
    assert abs(float(draws.mean()) - 1) < 0.001 and abs(float(draws.std()) - 0.1) < 0.001
    assert abs(float(((draws - 1).abs() < 0.1).double().mean()) - 0.6827) < 0.005


def test_time_flip() -> None:
    vector = load_vector("ecgmatch_original_augment_ops")
    x = torch.tensor(vector["x"])[:, :, 0]
    assert torch.equal(time_flip(x), torch.tensor(vector["time_flip"])[:, :, 0])


def test_burst_dropout_lengths_and_places() -> None:
    samples = 20
    dropped = burst_dropout(torch.ones(4000, 12, samples), generator()) == 0
    lengths = dropped.sum(dim=-1)
    assert (lengths % 2 == 0).all()
    seen = torch.bincount(lengths.flatten() // 2, minlength=11)
    assert seen[10] == 0
    torch.testing.assert_close(seen[:10] / 48000, torch.full((10,), 0.1), atol=0.006, rtol=0)
    edges = (dropped[..., 1:] != dropped[..., :-1]).sum(dim=-1)
    assert (edges <= 2).all()  # one interval
    starts = dropped.int().argmax(dim=-1)[lengths == 10].float()
    assert starts.min() == 0 and starts.max() == samples - 10 - 1
    assert abs(float(starts.mean()) - (samples - 11) / 2) < 0.2
    assert not torch.equal(dropped[:, 0], dropped[:, 1])  # leads are drawn apart


def test_lead_permutation_is_shared_by_the_batch() -> None:
    x = torch.arange(12.0)[None, :, None].expand(5, 12, 4)
    permuted = permute_leads(x, generator())
    assert (permuted == permuted[:1]).all() and sorted(permuted[0, :, 0].tolist()) == list(range(12))
    assert permuted[0, :, 0].tolist() != list(range(12))


def test_gaussian_noise() -> None:
    noise = gaussian_noise(torch.zeros(10, 12, 1000), generator(), 0.5)
    assert abs(float(noise.std()) - 0.5) < 0.005 and abs(float(noise.mean())) < 0.005


def test_weak_ecg_augment_is_exactly_one_operation() -> None:
    x = (10.0 * torch.arange(1, 13)[:, None] + torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8])).expand(3, 12, 8).clone()
    source = generator()
    flips = 0
    for _ in range(200):
        view = ecg_augment(x, source, "weak")
        flipped = torch.equal(view, x.flip(-1))
        permuted = torch.equal(view[..., 0].sort(dim=1).values, x[..., 0]) and torch.equal(
            view.diff(dim=-1), x.diff(dim=-1)
        )
        dropped = torch.equal(torch.where(view == 0, x, view), x)
        noisy = bool((view - x).abs().max() < 0.5) and not torch.equal(view, x)
        assert flipped + permuted + dropped + noisy == 1
        flips += flipped
    assert 30 < flips < 70  # a quarter of 200 is flipped


def test_strong_ecg_augment_uses_the_distinct_values_of_four_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    monkeypatch.setattr(ecg_views, "time_flip", lambda x: used.append("flip") or x)
    monkeypatch.setattr(ecg_views, "burst_dropout", lambda x, g: used.append("dropout") or x)
    monkeypatch.setattr(ecg_views, "gaussian_noise", lambda x, g, std: used.append(f"noise {std}") or x)
    monkeypatch.setattr(ecg_views, "permute_leads", lambda x, g: used.append("leads") or x)
    source, counts, first = generator(), [], []
    for _ in range(2000):
        used.clear()
        ecg_augment(torch.zeros(1, 12, 8), source, "strong")
        assert len(set(used)) == len(used)
        counts.append(len(used))
        first.append(used[0])
    assert set(first) == {"flip", "dropout", "noise 0.5", "leads"}
    assert abs(np.mean(counts) - 4 * (1 - 0.75**4)) < 0.05  # expected number of distinct values: 2.73
    assert all(abs(first.count(name) / 2000 - 0.25) < 0.04 for name in set(first))
