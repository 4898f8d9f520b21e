"""Losses and selection of OpenMatch, CaliMatch and SafeECGMatch on plain logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from safeecgmatch.methods.parts.calibration import (
    class_calibration_loss,
    inlier_scores,
    one_vs_all_calibration_loss,
    select_inliers,
)
from safeecgmatch.methods.parts.losses import cross_entropy, pseudo_label_loss
from safeecgmatch.methods.parts.one_vs_all import one_vs_all_entropy, one_vs_all_loss, soft_consistency_loss
from tests.vectors import load_vector

GOLDEN = load_vector("safe_family_golden")
# The golden values were computed in float32, so they carry a relative rounding error of about 1e-7 themselves.
RELATIVE = 1e-6
PRECISIONS = [torch.float32, torch.float64]


def golden_inputs(dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    i, j = torch.arange(6, dtype=torch.float64)[:, None], torch.arange(6, dtype=torch.float64)
    exact = {
        "Z": 2 * torch.sin(1.3 * i + 0.7 * j[:3]),
        "O1": 1.5 * torch.cos(0.9 * i + 0.4 * j),
        "O2": 1.5 * torch.cos(0.9 * i + 0.4 * j + 0.25),
        "strong": 2 * torch.sin(1.1 * i + 0.9 * j[:3] + 0.3),
    }
    return {name: value.to(dtype) for name, value in exact.items()} | {"y": torch.tensor([0, 1, 2, 0, 1, 2])}


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize(
    ("key", "loss"),
    [
        ("L_cls", lambda g: cross_entropy(g["Z"], g["y"])),
        ("L_ood", lambda g: one_vs_all_loss(g["O1"], g["y"])),
        ("L_socr(O1,O2)", lambda g: soft_consistency_loss(g["O1"], g["O2"])),
        ("L_em(O1,O2)", lambda g: (one_vs_all_entropy(g["O1"]) + one_vs_all_entropy(g["O2"])) / 2),
        (
            "L_cls_cal(T=1.5,tableB)",
            lambda g: class_calibration_loss(g["Z"], g["y"], target("alpha_B(Z)", g), torch.tensor(1.5)),
        ),
        (
            "L_ood_cal(T=1.5,tableB)",
            lambda g: one_vs_all_calibration_loss(g["O1"], g["y"], target("beta_B(O1)", g), torch.tensor(1.5)),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_loss_equals_the_golden_value(dtype: torch.dtype, key: str, loss: Any) -> None:
    value = loss(golden_inputs(dtype))
    assert value.dtype == dtype
    assert value.item() == pytest.approx(GOLDEN[key], rel=RELATIVE)


def target(key: str, inputs: dict[str, Tensor]) -> Tensor:
    return torch.tensor(GOLDEN[key], dtype=inputs["Z"].dtype)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_selection_equals_the_golden_values(dtype: torch.dtype) -> None:
    inputs, wanted = golden_inputs(dtype), GOLDEN["selection_T=0.5"]
    half = torch.tensor(0.5)
    s_in, s_out, p = inlier_scores(inputs["Z"], inputs["O1"], half, half)
    confidence, pseudo = p.max(dim=1)
    assert s_in.tolist() == pytest.approx(wanted["S_in"], rel=RELATIVE)
    assert confidence.tolist() == pytest.approx(wanted["C"], rel=RELATIVE)
    assert pseudo.tolist() == wanted["pseudo"]
    torch.testing.assert_close(s_in + s_out, torch.ones_like(s_in))
    for strict in (False, True):
        assert select_inliers(s_in, s_out, confidence, 0.6, 0.9, strict).tolist() == wanted["mask_pi0.6_tau0.9"]
    mask = select_inliers(s_in, s_out, confidence, 0.5, 0.6, strict=False)
    assert mask.tolist() == wanted["mask_pi0.5_tau0.6"]
    fix = pseudo_label_loss(inputs["strong"], pseudo, mask, "selected")
    assert fix.item() == pytest.approx(GOLDEN["L_fix(strong,mask_pi0.5_tau0.6)"], rel=RELATIVE)
    over_batch = pseudo_label_loss(inputs["strong"], pseudo, mask, "batch")
    assert over_batch.item() == pytest.approx(fix.item() * 2 / 6, rel=RELATIVE)


def test_saturated_logits_stay_finite() -> None:
    z, o = torch.tensor([[400.0, -400.0, 0.0]]), torch.tensor([[400.0, -400.0, 0.0, -400.0, 400.0, 0.0]])
    z.requires_grad_(), o.requires_grad_()
    y, share, t = torch.tensor([1]), torch.tensor([0.5]), torch.tensor(0.2)
    total = class_calibration_loss(z, y, share, t) + one_vs_all_calibration_loss(o, y, share, t)
    total = total + one_vs_all_loss(o, y) + one_vs_all_entropy(o) + soft_consistency_loss(o, o.flip(1))
    total.backward()
    assert z.grad is not None and o.grad is not None
    assert bool(torch.isfinite(total) and torch.isfinite(z.grad).all() and torch.isfinite(o.grad).all())
