from __future__ import annotations

import torch

from safeecgmatch.config import Params
from safeecgmatch.engine.models import ResNet1D
from safeecgmatch.profiles import compose_params
from safeecgmatch.reporting.deviations import barriers, comparability, deviations, receptive_field
from tests.conftest import ROOT
from tests.reporting.synthetic import make_params, paper_params

PROFILES = ROOT / "profiles"


def said(params: Params, dataset: str) -> list[str]:
    return barriers(deviations(params), dataset)


def test_the_papers_profile_deviates_in_nothing() -> None:
    paper = compose_params("paper", PROFILES)
    assert deviations(paper) == []
    assert [said(paper, dataset) for dataset in ("ptbxl", "cinc21")] == [[], []]
    assert "ranks, gaps and levels can be compared" in comparability(paper, [])


def test_cpu_says_what_its_size_means() -> None:
    cpu = compose_params("cpu", PROFILES)
    rows = {row.setting: row for row in deviations(cpu)}
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
    rows = {row.setting for row in deviations(compose_params("long", PROFILES))}
    assert rows == {"sampling rate", "width of the backbone", "seed of the split"}


def test_generated_data_compare_with_nothing() -> None:
    demo = compose_params("demo", PROFILES)
    rows = deviations(demo)
    assert {"records (PTB-XL)", "records (CinC21)", "learning rate"} <= {row.setting for row in rows}
    assert all(row.why for row in rows), [row.setting for row in rows if not row.why]
    assert "generated" in comparability(demo, rows)
    budget = {row.setting: row for row in rows}
    assert "10 instead of 50 epochs" in budget["iterations"].meaning
    assert budget["warm-up before calibration and pseudo-labels"].paper == "500 iterations"


def test_barriers_say_the_same_in_few_words_for_each_dataset() -> None:
    assert said(paper_params(), "ptbxl") == said(paper_params(), "cinc21") == []
    train = {**paper_params().train.model_dump(), "iterations": 2000, "epoch": 200, "learning_rate": 0.01}
    small = paper_params(model={"width": 16}, train=train)
    assert said(small, "ptbxl") == [
        "width 16", "2,000 iterations", "epochs of 200 iterations", "learning rate 0.01",
    ]  # fmt: skip
    assert said(paper_params(split={"strategy": "patient"}), "ptbxl") == ["patient split"]
    assert said(paper_params(split={"seed": "run"}), "ptbxl") == ["a split for each seed"]
    changed = {
        "safeecgmatch": {
            "confidence_threshold": 0.8,
            "switches": {"paper": {"start": 20000}, "release": {"prediction": "freq"}},
        }
    }
    expected = ["confidence threshold T2 0.8 of SafeECGMatch", "start 20,000 of SafeECGMatch"]
    assert said(paper_params(methods=changed), "ptbxl") == expected
    assert said(make_params(), "cinc21")[:3] == [
        "generated data", "10 labels per class", "a pool of 600",
    ]  # fmt: skip
    cpu = compose_params("cpu", PROFILES)
    assert "a pool of 14,850" in said(cpu, "cinc21")
    assert "a pool of 14,850" not in said(cpu, "ptbxl")


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
