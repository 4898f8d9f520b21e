"""Adello: vectors, and the running prior as state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from safeecgmatch.methods.adello.method import Logits, Priors, Step, alpha_at, shifts, step
from safeecgmatch.methods.parts.losses import cross_entropy, pseudo_label_loss
from tests.methods.harness import gradients, hyper_of, run_to, toy_training
from tests.vectors import EXACT, double, load_vector

VECTOR = load_vector("adello_losses")


@pytest.mark.parametrize("case", VECTOR["cases"])
def test_shifts_and_losses_vector(case: dict) -> None:
    expected = case["expected"]
    alpha = alpha_at(case["t"], case["t_max"], VECTOR["alpha_min"], VECTOR["k"])
    assert alpha == pytest.approx(expected["alpha"], abs=1e-9)
    labelled_shift, shift = shifts(double(case["p_hat"]), double(case["p_labelled"]), alpha)
    torch.testing.assert_close(labelled_shift, double(expected["labelled_shift"]), **EXACT)
    torch.testing.assert_close(shift, double(expected["strong_shift"]), **EXACT)
    z_l, z_s = double(case["labelled_logits"]).requires_grad_(), double(case["strong_logits"]).requires_grad_()
    labelled = cross_entropy(z_l + labelled_shift, torch.tensor(case["labels"]))
    pseudo, mask = torch.tensor(case["pseudo_labels"]), torch.tensor(case["mask"])
    consistency = pseudo_label_loss(z_s + shift, pseudo, mask, "batch")
    (labelled + consistency).backward()
    assert labelled.item() == pytest.approx(expected["L_lab"], abs=1e-6)
    assert consistency.item() == pytest.approx(expected["L_cons"], abs=1e-6)
    torch.testing.assert_close(z_l.grad, double(expected["grad_labelled"]), **EXACT)
    torch.testing.assert_close(z_s.grad, double(expected["grad_strong"]), **EXACT)


@pytest.mark.parametrize("case", VECTOR["cases"])
def test_step_gives_the_vector_when_weak_logits_give_its_mask(case: dict) -> None:
    weak = [[30.0 * (k == y) if m else float(k == y) for k in range(3)] for y, m in zip(case["pseudo_labels"], case["mask"], strict=True)]  # fmt: skip  # noqa: E501
    result = run_step(case, double(weak))
    assert result.accepted.tolist() == case["mask"]
    assert result.terms["supervised"].item() == pytest.approx(case["expected"]["L_lab"], abs=1e-6)
    assert result.terms["consistency"].item() == pytest.approx(case["expected"]["L_cons"], abs=1e-6)


def run_step(case: dict, z_w: Tensor) -> Step:
    alpha = alpha_at(case["t"], case["t_max"], VECTOR["alpha_min"], VECTOR["k"])
    z = Logits(double(case["labelled_logits"]), z_w, double(case["strong_logits"]))
    priors = Priors(double(case["p_hat"]), double(case["p_labelled"]))
    active = {"consistency", "distillation"}
    return step(z, torch.tensor(case["labels"]), priors, alpha, active, hyper_of("adello"))


def test_prior_moves_by_a_thousandth_and_is_used_one_iteration_later() -> None:
    case = VECTOR["cases"][1]
    z_w = double([[30.0, 0, 0]] * 4)
    result = run_step(case, z_w)
    assert result.prior.dtype == torch.float64
    assert result.prior.tolist() == pytest.approx([0.7003, 0.1998, 0.0999], abs=1e-9)
    assert result.terms["supervised"].item() == pytest.approx(case["expected"]["L_lab"], abs=1e-6)


def test_single_precision_logits_are_shifted_in_double_and_get_single_gradients() -> None:
    z = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    priors = Priors(double([0.7, 0.2, 0.1]), double([1 / 3] * 3))
    result = step(Logits(z[:2], z[2:4], z[4:]), torch.tensor([0, 1]), priors, 0.5, {"consistency"}, hyper_of("adello"))
    assert result.terms["supervised"].dtype == torch.float64
    result.terms["supervised"].backward()
    assert z.grad is not None and z.grad.dtype == torch.float32


def test_labelled_prior_is_counted_and_the_running_one_starts_uniform() -> None:
    training = toy_training("adello", "paper")
    assert training.method.labelled_prior.tolist() == pytest.approx([1 / 3] * 3)
    assert training.method.prior.tolist() == pytest.approx([1 / 3] * 3)
    run_to(training, 2)
    assert training.method.prior.tolist() != pytest.approx([1 / 3] * 3, abs=1e-9)
    assert training.method.prior.sum().item() == pytest.approx(1.0, abs=1e-6)
    assert all(gradients(training, 2).values())
