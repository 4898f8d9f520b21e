from __future__ import annotations

import numpy as np
import pytest
import torch

from safeecgmatch.engine.models import ResNet1D
from safeecgmatch.methods.parts.branch import Branch, Calibration, smoothed_targets
from safeecgmatch.methods.parts.smoothing import (
    BINS,
    TICKS,
    class_confidence,
    empty_table,
    look_up,
    smoothing_table,
)
from safeecgmatch.methods.parts.temperature import fit_ova_temperature
from tests.methods.parts.test_calibration import GOLDEN, PRECISIONS, golden_inputs


def table_of(entries: dict[str, float | None]) -> torch.Tensor:
    table = empty_table()
    for tick, value in entries.items():
        table[TICKS.index(float(tick))] = torch.nan if value is None else value
    return table


def table_b() -> torch.Tensor:
    return torch.tensor([min(1.0, max(0.0, 0.9 * tick + 0.01)) for tick in TICKS[:-1]], dtype=torch.float64)


def test_ticks_are_rounded_to_two_decimals() -> None:
    assert TICKS[:5] == (0.0, 0.03, 0.07, 0.1, 0.13) and TICKS[-3:] == (0.93, 0.97, 1.0) and len(TICKS) == BINS + 1


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize(("key", "floor"), [("lookup_alpha_floor_1/3", 1 / 3), ("lookup_beta_floor_1/2", 0.5)])
def test_look_up_equals_the_golden_values(dtype: torch.dtype, key: str, floor: float) -> None:
    confidence = torch.tensor(GOLDEN["lookup_conf"], dtype=dtype)
    targets = look_up(confidence, table_of(GOLDEN["tableA_raw"]), floor)
    assert targets.dtype == dtype
    assert targets.tolist() == pytest.approx(GOLDEN[key], rel=1e-6)
    clipped = look_up(confidence, table_of(GOLDEN["tableA_clipped"]), floor, clip=False)
    assert clipped.tolist() == targets.tolist()


def test_clipped_entries_equal_the_golden_values() -> None:
    """Read in the middle of its bin with no floor, a bin gives its clipped entry."""
    for tick, wanted in GOLDEN["tableA_clipped"].items():
        j = TICKS.index(float(tick))
        middle = torch.tensor([(TICKS[j] + TICKS[j + 1]) / 2], dtype=torch.float64)
        assert look_up(middle, table_of(GOLDEN["tableA_raw"]), 0.0).item() == pytest.approx(wanted, rel=1e-6)


def test_table_equals_the_golden_values() -> None:
    i, j = torch.arange(200, dtype=torch.float64)[:, None], torch.arange(3, dtype=torch.float64)
    logits = 3 * torch.sin(0.37 * i + 2.1 * j) + torch.cos(0.11 * i * (j + 1))
    labels = torch.tensor([(7 * n + n // 5) % 3 for n in range(200)])
    confidence, predicted = class_confidence(logits)
    wanted = table_of(GOLDEN["metrics_on_P"]["table30"])
    np.testing.assert_allclose(smoothing_table(confidence, predicted == labels), wanted, rtol=1e-6)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_targets_of_given_logits_equal_the_golden_values(dtype: torch.dtype) -> None:
    g, one = golden_inputs(dtype), torch.tensor(1.5)
    alpha, beta = smoothed_targets(g["Z"], g["O1"], Calibration(one, one, table_b(), table_b()), "mixed", clip=True)
    assert alpha.tolist() == pytest.approx(GOLDEN["alpha_B(Z)"], rel=1e-6)
    assert beta.tolist() == pytest.approx(GOLDEN["beta_B(O1)"], rel=1e-6)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_a_confidence_on_a_tick_belongs_to_the_bin_below(dtype: torch.dtype) -> None:
    on_ticks = torch.tensor(TICKS[1:], dtype=torch.float64).to(dtype)
    table = torch.arange(BINS, dtype=torch.float64)
    assert look_up(on_ticks, table, 0.0, clip=False).tolist() == list(range(BINS))
    above = torch.nextafter(on_ticks[:-1], torch.ones((), dtype=dtype))
    assert look_up(above, table, 0.0, clip=False).tolist() == list(range(1, BINS))


def test_a_clipped_target_stays_in_its_bin_and_an_empty_bin_is_the_identity() -> None:
    generator = torch.Generator().manual_seed(1)
    confidence = torch.rand(2000, generator=generator).clamp(min=0.34)
    table = torch.rand(BINS, generator=generator, dtype=torch.float64)
    table[::3] = torch.nan
    targets = look_up(confidence, table, 1 / 3)
    ticks = torch.tensor(TICKS, dtype=torch.float32)
    bins = torch.bucketize(confidence, ticks) - 1
    assert bool((targets >= ticks[bins]).all() and (targets <= ticks[bins + 1]).all())
    empty = table.isnan()[bins]
    assert torch.equal(targets[empty], confidence[empty])
    assert not torch.equal(targets, look_up(confidence, table, 1 / 3, clip=False))


def test_the_floor_is_not_applied_in_an_empty_bin() -> None:
    low = torch.tensor([0.2])
    assert look_up(low, empty_table(), 0.5).item() == low.item()
    assert look_up(low, torch.zeros(BINS), 0.5).item() == 0.5


def test_a_perfect_or_useless_validation_set_fills_its_bins_with_one_or_zero() -> None:
    confidence = torch.linspace(0.35, 1.0, 200)
    for correct in (True, False):
        table = smoothing_table(confidence, torch.full((200,), correct))
        assert set(table[~table.isnan()].tolist()) == {float(correct)}
        assert bool(table[:10].isnan().all()) and not bool(table[11:].isnan().any())
    one, half = smoothing_table(torch.ones(2), torch.tensor([True, False])), torch.tensor(0.5)
    assert one[-1] == half and bool(one[:-1].isnan().all())


def test_axis_says_which_confidences_are_tempered() -> None:
    generator = torch.Generator().manual_seed(2)
    z, o = 3 * torch.randn(300, 3, generator=generator), 3 * torch.randn(300, 6, generator=generator)
    labels = z.argmax(dim=1) * (torch.rand(300, generator=generator) < 0.8)
    tables, targets = {}, {}
    for axis in ("mixed", "tempered", "untempered"):
        network = ResNet1D(2, 3, 2)
        made = Branch(network, torch.nn.Linear(network.dim, 6, bias=False), 4.0, "gradient", axis, True)
        made.calibrate(z, o, labels)
        tables[axis] = made.table_class.clone()
        targets[axis] = smoothed_targets(z, o, made.calibration(), axis, clip=True)[0]
    plain, correct = class_confidence(z)[0], class_confidence(z)[1] == labels
    warm = class_confidence(z, 4.0)[0]
    assert tables["untempered"].numpy().tobytes() == smoothing_table(plain, correct).numpy().tobytes()
    assert tables["tempered"].numpy().tobytes() == smoothing_table(warm, correct).numpy().tobytes()
    assert tables["mixed"].numpy().tobytes() == tables["tempered"].numpy().tobytes()
    assert (targets["tempered"] - warm).abs().max() < 0.05  # clipped into the bin of the tempered confidence
    assert (targets["mixed"] - plain).abs().max() < 0.05
    assert (targets["tempered"] - targets["mixed"]).abs().max() > 0.1


def test_one_vs_all_temperature_stays_within_the_bounds() -> None:
    labels = np.array([0, 1, 2, 0])
    perfect = np.concatenate([np.zeros((4, 3)), 2.0 * np.eye(3)[labels] - 1.0], axis=1)
    assert fit_ova_temperature(perfect, labels) == pytest.approx(0.2, abs=1e-4)
    assert fit_ova_temperature(-50 * perfect, labels) == pytest.approx(5.0, abs=1e-4)
