"""FixMatch and Supervised."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from safeecgmatch.methods.fixmatch.method import FixMatchHyper, FixMatchSwitches, step
from tests.methods.harness import run, toy_training

HYPER = FixMatchHyper(threshold=0.95, lambda_u=1.0)


def switches(strict: bool = False, average_over: str = "batch") -> FixMatchSwitches:
    common = {"batch_order": "reshuffled", "stop_at_val_1": False, "start": 0, "ramp": 0}
    return FixMatchSwitches(**common, threshold_strict=strict, average_over=average_over)


def logits_of(confidence: list[float]) -> torch.Tensor:
    """Class 1 of two has exactly these probabilities (float64)."""
    p = torch.tensor(confidence, dtype=torch.float64)
    return torch.stack([torch.zeros_like(p), (p / (1 - p)).log()], dim=1)


def test_pseudo_label_loss_over_batch_or_selected() -> None:
    weak, strong = logits_of([0.99, 0.6, 0.01]), logits_of([0.7, 0.7, 0.7])
    y = torch.tensor([1, 0, 1])
    for average_over, count in (("batch", 3), ("selected", 2)):
        result = step(strong, y, weak, strong, HYPER, switches(average_over=average_over), 0.5)
        assert result.accepted.tolist() == [True, False, True] and result.pseudo.tolist() == [1, 1, 0]
        pseudo, supervised = -(math.log(0.7) + math.log(0.3)) / count, F.cross_entropy(strong, y).item()
        assert result.terms["pseudo"].item() == pytest.approx(pseudo)
        assert result.terms["supervised"].item() == pytest.approx(supervised)
        assert result.total.item() == pytest.approx(supervised + 0.5 * pseudo)
    nobody = step(strong, y, strong, strong, HYPER, switches(True, "selected"), 1.0)
    assert nobody.terms["pseudo"].item() == 0.0
    too_early = step(strong, y, weak, strong, HYPER, switches(), 0.0)
    assert not too_early.accepted.any() and too_early.total == too_early.terms["supervised"]


def test_pseudo_labels_carry_no_gradient() -> None:
    weak, strong = logits_of([0.99, 0.6]).requires_grad_(), logits_of([0.7, 0.7]).requires_grad_()
    result = step(strong, torch.tensor([0, 1]), weak, strong, HYPER, switches(), 1.0)
    into_weak, into_strong = torch.autograd.grad(result.terms["pseudo"], [weak, strong], allow_unused=True)
    assert into_weak is None and into_strong.abs().sum(dim=1).gt(0).tolist() == [True, False]


def test_supervised_uses_no_unlabelled_record() -> None:
    training = run(toy_training("supervised", "paper"))
    assert training.setting.unlabelled_batch == 0 and training.setting.labelled_batch == 16
    assert "mask_rate" not in training.history[-1]
