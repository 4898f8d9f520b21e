"""IOMatch: vectors, and the heads of each protocol. Masks, targets and the queue are in whole iterations."""

from __future__ import annotations

import math

import pytest
import torch

from safeecgmatch.methods.iomatch.alignment import Alignment, align
from safeecgmatch.methods.parts.one_vs_all import one_vs_all_loss, one_vs_all_probabilities
from tests.methods.harness import toy_training
from tests.vectors import EXACT, double, load_vector


@pytest.mark.parametrize("case", load_vector("iomatch_ova_loss")["cases"])
def test_one_vs_all_loss_vector(case: dict) -> None:
    logits = double(case["logits"]).requires_grad_()
    outlier, inlier = one_vs_all_probabilities(logits)
    torch.testing.assert_close(outlier, double(case["outlier_prob"]), **EXACT)
    torch.testing.assert_close(inlier, double(case["inlier_prob"]), **EXACT)
    loss = one_vs_all_loss(logits, torch.tensor(case["labels"]))
    loss.backward()
    assert loss.item() == pytest.approx(case["loss"], abs=1e-6)
    torch.testing.assert_close(logits.grad, double(case["grad_logits"]), **EXACT)


def test_alignment_vector() -> None:
    vector = load_vector("iomatch_dist_align")
    state = Alignment(torch.zeros(vector["queue_length"], vector["K"]))
    for expected in vector["steps"]:
        aligned, state = align(double(expected["probs"]), state)
        torch.testing.assert_close(aligned, double(expected["aligned"]), **EXACT)
        torch.testing.assert_close(state.means, torch.tensor(expected["queue_after"]), **EXACT)
        assert state.means.dtype == torch.float32
        assert state.pointer == expected["ptr_after"]


def test_heads_of_each_protocol() -> None:
    paper, release = toy_training("iomatch", "paper").method, toy_training("iomatch", "release").method
    assert paper.projection[2].out_features == 128 and paper.ova.bias is None
    assert release.projection[2].out_features == release.network.dim and release.ova.bias is not None
    for linear in (release.network.fc, release.projection[0], release.projection[2], release.ova, release.open):
        assert linear.weight.std().item() == pytest.approx(0.02, rel=0.5) and not linear.bias.any()
    assert paper.open.weight.std().item() == pytest.approx(math.sqrt(2 / (128 + 4)), rel=0.2)
    assert paper.ova.weight.std().item() == pytest.approx(math.sqrt(2 / (128 + 6)), rel=0.2)
    assert paper.network.fc.weight.std().item() == pytest.approx(0.02, rel=0.5) and not paper.open.bias.any()
    assert paper.projection[0].bias.any()
