from __future__ import annotations

import pytest
import torch

from safeecgmatch.methods.openmatch.step import looks_inlying, step
from tests.methods.harness import hyper_of, switches_of
from tests.methods.parts.test_calibration import GOLDEN, RELATIVE, golden_inputs


def test_step_is_the_weighted_sum_of_golden_terms() -> None:
    g = golden_inputs()
    hyper = hyper_of("openmatch")
    result = step(g["Z"], g["O1"], g["y"], g["O1"], g["O2"], hyper)
    wanted = {
        "supervised": GOLDEN["L_cls"],
        "ova": GOLDEN["L_ood"],
        "entropy": GOLDEN["L_em(O1,O2)"],
        "socr": GOLDEN["L_socr(O1,O2)"],
    }
    assert {name: term.item() for name, term in result.terms.items()} == pytest.approx(wanted, rel=RELATIVE)
    total = wanted["supervised"] + wanted["ova"] + 0.1 * wanted["entropy"] + 0.5 * wanted["socr"]
    assert result.total.item() == pytest.approx(total, rel=RELATIVE)


def test_the_pair_of_the_predicted_class_decides_and_a_tie_rejects() -> None:
    z = torch.tensor([[2.0, 0, 0], [0, 2.0, 0], [0, 0, 2.0]])
    o = torch.tensor([[0.0, 9, 0, 1, 0, 0], [0.0, 1, 0, 9, 0, 9], [0.0, 0, 1, 0, 0, 1]])
    assert looks_inlying(z, o).tolist() == [True, False, False]


def test_thresholds() -> None:
    assert [switches_of("openmatch", protocol).threshold for protocol in ("paper", "release")] == [0.0, 0.95]
