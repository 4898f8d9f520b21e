from __future__ import annotations

import torch

from safeecgmatch.engine.models import ResNet1D
from safeecgmatch.profiles import compose_params
from safeecgmatch.reporting.deviations import comparability, deviations, receptive_field
from tests.conftest import ROOT

PROFILES = ROOT / "profiles"


def test_the_papers_profile_deviates_in_nothing() -> None:
    paper = compose_params("paper", PROFILES)
    assert deviations(paper, paper) == []
    assert "ranks, gaps and levels can be compared" in comparability(paper, [])


def test_cpu_says_what_its_size_means() -> None:
    cpu, paper = compose_params("cpu", PROFILES), compose_params("paper", PROFILES)
    rows = {row.setting: row for row in deviations(cpu, paper)}
    assert (rows["sampling rate"].ours, rows["sampling rate"].paper) == ("100 Hz", "500 Hz")
    assert not any("warm-up" in name or "epoch" in name for name in rows)  # absolute, and the paper's
    assert (rows["seed of the split"].ours, rows["seed of the split"].paper) == ("each run's own", "42")
    meanings = " ".join(row.meaning for row in rows.values())
    for part in (
        "4.35 s instead of 0.87 s", "7.5 of 50 Hz instead of 37.5 of 250 Hz",
        "the first 10 of 50 epochs; a labelled record is seen 2,133 times instead of 10,667",
        "243,747 instead of 3,850,371 parameters",
    ):  # fmt: skip
        assert part in meanings
    assert all(row.why for row in rows.values()), [row.setting for row in rows.values() if not row.why]
    assert comparability(cpu, list(rows.values())).startswith("Ranks of methods and gaps between them can be compared")


def test_long_has_the_papers_budget() -> None:
    long, paper = compose_params("long", PROFILES), compose_params("paper", PROFILES)
    rows = {row.setting for row in deviations(long, paper)}
    assert rows == {"sampling rate", "width of the backbone", "seed of the split"}


def test_generated_data_compare_with_nothing() -> None:
    demo, paper = compose_params("demo", PROFILES), compose_params("paper", PROFILES)
    rows = deviations(demo, paper)
    assert {"records (PTB-XL)", "records (CinC21)", "learning rate"} <= {row.setting for row in rows}
    assert all(row.why for row in rows), [row.setting for row in rows if not row.why]
    assert "generated" in comparability(demo, rows)
    budget = {row.setting: row for row in rows}
    assert "10 instead of 50 epochs" in budget["iterations"].meaning
    assert budget["warm-up before calibration and pseudo-labels"].paper == "500 iterations"


def test_receptive_field_is_what_the_network_sees() -> None:
    """With positive weights a larger sample is felt wherever it is seen; entry 16 of the last map stands at 16 * 32."""
    torch.manual_seed(0)
    network = ResNet1D(12, 3, 2).double().eval()
    with torch.no_grad():
        for weight in network.parameters():
            weight.abs_()
    maps: list[torch.Tensor] = []
    network.blocks.register_forward_hook(lambda module, inputs, output: maps.append(output[:, :, 0, 16]))
    half, centre = receptive_field() // 2, 16 * 32
    x = torch.rand(5, 12, 1000).double()[:1].repeat(5, 1, 1)
    for row, position in enumerate([centre - half - 1, centre - half, centre + half, centre + half + 1], start=1):
        x[row, :, position] += 100.0
    network(x)
    felt = [not torch.allclose(maps[0][row], maps[0][0], rtol=1e-12) for row in range(1, 5)]
    assert felt == [False, True, True, False]
