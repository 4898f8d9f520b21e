"""IOMatch: vectors, masks and targets, who gets gradient, and the alignment queue as state."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from safeecgmatch.methods.iomatch.alignment import Alignment, align
from safeecgmatch.methods.iomatch.step import Heads, step
from safeecgmatch.methods.parts.one_vs_all import one_vs_all_loss, one_vs_all_probabilities
from tests.methods.toy import gradients, hyper_of, only_losses, run_to, toy_training
from tests.vectors import load_vector

EXACT = {"rtol": 0.0, "atol": 1e-6}


def double(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


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


def random_heads(rows: int, seed: int, scale: float = 4.0) -> Heads:
    generator = torch.Generator().manual_seed(seed)
    draw = [scale * torch.randn(rows, n, generator=generator, dtype=torch.float64) for n in (3, 6, 4)]
    return Heads(*(values.requires_grad_() for values in draw))


def test_step_follows_its_equations_and_keeps_gradient_off_the_targets() -> None:
    labelled, weakly, strongly = random_heads(4, 1), random_heads(40, 2), random_heads(40, 3)
    y = torch.tensor([0, 1, 2, 1])
    result = step((labelled, weakly, strongly), y, Alignment(torch.zeros(128, 3)), 0.5, True, hyper_of("iomatch"))
    p = weakly.closed.detach().softmax(1)
    inlier_loss = open_loss = 0.0
    mean = p.mean(0) / 128
    for j in range(40):
        raw = [p[j, k].item() * (1 / 3 + 1e-6) / (mean[k].item() + 1e-6) for k in range(3)]
        aligned = [value / sum(raw) for value in raw]
        v = [1 / (1 + math.exp(weakly.ova[j, k].item() - weakly.ova[j, 3 + k].item())) for k in range(3)]
        target = [a * b for a, b in zip(aligned, v, strict=True)]
        target.append(sum(a * (1 - b) for a, b in zip(aligned, v, strict=True)))
        assert sum(target) == pytest.approx(1.0)
        assert result.target[j].tolist() == pytest.approx(target, abs=1e-6)
        assert bool(result.inlier_mask[j]) == (target[3] < 0.5)
        assert bool(result.confident_mask[j]) == (max(aligned) >= 0.95)
        assert bool(result.open_mask[j]) == (max(target) >= 0.5)
        closed, opened = strongly.closed[j].log_softmax(0), strongly.open[j].log_softmax(0)
        if target[3] < 0.5 and max(aligned) >= 0.95:
            inlier_loss -= sum(t * z.item() for t, z in zip(aligned, closed, strict=True)) / 40
        if max(target) >= 0.5:
            open_loss -= sum(t * z.item() for t, z in zip(target, opened, strict=True)) / 40
    assert 0 < int((result.inlier_mask & result.confident_mask).sum()) < 40
    assert result.terms["inlier"].item() == pytest.approx(inlier_loss, abs=1e-6)
    assert result.terms["open"].item() == pytest.approx(open_loss, abs=1e-6)
    supervised = result.terms["closed"] + result.terms["ova"]
    assert result.total.item() == pytest.approx(supervised.item() + 0.5 * (inlier_loss + open_loss), abs=1e-6)
    result.total.backward()
    assert all(head.grad is None for head in weakly)
    assert strongly.ova.grad is None and labelled.open.grad is None
    assert strongly.closed.grad is not None and strongly.open.grad is not None


def test_without_alignment_the_target_is_the_prediction() -> None:
    weakly = random_heads(8, 5)
    z = (random_heads(2, 1), weakly, random_heads(8, 6))
    result = step(z, torch.tensor([0, 1]), None, 1.0, False, hyper_of("iomatch"))
    assert result.state is None
    assert torch.equal(result.aligned, weakly.closed.detach().softmax(1))


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


def test_the_open_head_waits_under_paper_and_is_ramped_under_release() -> None:
    paper = toy_training("iomatch", "paper", iterations=50_000, epoch=1000)
    early, late = gradients(paper, 499), gradients(paper, 500)
    assert [name for name, reached in early.items() if not reached] == ["open.weight", "open.bias"]
    assert all(late.values())
    losses = only_losses(paper, 0)
    terms = losses.terms
    assert losses.total.item() == pytest.approx(sum(terms[name].item() for name in ("closed", "ova", "inlier")))
    accept_all = {"threshold": 0.0, "open_threshold": 0.0, "outlier_threshold": 1.0}
    release = toy_training("iomatch", "release", iterations=50_000, epoch=1000, hyper=accept_all)
    losses = only_losses(release, 250)
    terms = losses.terms
    ramped = terms["closed"] + terms["ova"] + 0.2865048 * (terms["inlier"] + terms["open"])
    assert terms["inlier"].item() > 0 and terms["open"].item() > 0
    assert losses.total.item() == pytest.approx(ramped.item(), abs=1e-6)


def test_queue_is_written_once_per_iteration_and_by_the_monitoring_pass_only_under_release() -> None:
    paper = toy_training("iomatch", "paper", pool=300, iterations=100, epoch=25)
    run_to(paper, 3)
    assert paper.method.alignment.pointer == 3
    assert int(paper.method.alignment.means.any(dim=1).sum()) == 3
    release = toy_training("iomatch", "release", pool=300, iterations=100, epoch=25)
    run_to(release, 1)  # 300 records are 3 batches of at most 128
    assert release.method.alignment.pointer == 3 + 1
    run_to(release, 39)  # an epoch is 38 iterations here, one pass over the pool
    assert release.method.alignment.pointer == 3 + 38 + 3 + 1
    assert release.method.training


def test_monitoring_pass_pushes_means_of_the_eval_mode_network() -> None:
    training = toy_training("iomatch", "release", pool=300, iterations=100)
    statistics = {name: value.clone() for name, value in training.method.state_dict().items()}
    training.method.train()
    training.method.before_step(0)
    means = training.method.alignment.means
    assert means[:3].sum(dim=1).tolist() == pytest.approx([1.0] * 3)
    assert not means[3:].any()
    assert all(torch.equal(value, training.method.state_dict()[name]) for name, value in statistics.items())
    training.method.before_step(1)  # inside the first epoch
    assert torch.equal(means, training.method.alignment.means)


def test_prediction_is_the_closed_head_with_the_outlier_score() -> None:
    method = toy_training("iomatch", "paper").method
    outputs = {"class_logits.main": torch.zeros(1, 3), "ova_logits.main": torch.tensor([[9.0, 9, 9, 0, 0, 0]])}
    prediction = method.predict(outputs)["main"]
    assert prediction.log_probs.exp().tolist()[0] == pytest.approx([1 / 3] * 3)
    assert prediction.ood_score.item() == pytest.approx(1 / (1 + math.exp(-9.0)), abs=1e-6)
