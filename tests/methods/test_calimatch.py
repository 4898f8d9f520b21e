from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from safeecgmatch.engine.loop import Training
from safeecgmatch.methods.calimatch.method import CaliMatch
from safeecgmatch.methods.calimatch.step import CaliMatchHyper, CaliMatchSwitches, Heads, step
from safeecgmatch.methods.parts.branch import Calibration
from safeecgmatch.methods.parts.smoothing import TICKS, empty_table
from safeecgmatch.protocols import switches
from tests.methods.harness import hyper_of, toy_training
from tests.methods.parts.test_calibration import GOLDEN, RELATIVE, golden_inputs

EAGER = {"inlier_threshold": 0.4, "confidence_threshold": 0.35}  # so that records are selected from the start


def hyper(**changes: Any) -> CaliMatchHyper:
    return hyper_of("calimatch", **changes)


def chosen(protocol: str) -> CaliMatchSwitches:
    return CaliMatchSwitches(**switches("calimatch", protocol, {}))


def calibration(temperature: float, requires_grad: bool = False) -> Calibration:
    table = torch.tensor([min(1.0, max(0.0, 0.9 * tick + 0.01)) for tick in TICKS[:-1]], dtype=torch.float64)
    t_class, t_ova = (torch.tensor(temperature, requires_grad=requires_grad) for _ in range(2))
    return Calibration(t_class, t_ova, table, table)


def golden_heads(**changes: Tensor) -> Heads:
    g = golden_inputs()
    heads = {"z_l": g["Z"], "o_l": g["O1"], "z_1": g["Z"], "o_1": g["O1"], "o_2": g["O2"], "z_s": g["strong"]}
    return Heads(**(heads | changes))


def test_terms_and_total_of_a_step_equal_the_golden_values() -> None:
    """The golden total takes its calibration terms at T = 1.5 and its mask at T = 0.5, hence two steps."""
    y, release = golden_inputs()["y"], chosen("release")
    warm = step(y, golden_heads(), calibration(1.5), hyper(), release, late=True)
    names = {"cls": "L_cls", "ood": "L_ood", "socr": "L_socr(O1,O2)"}
    names |= {"cls_cal": "L_cls_cal(T=1.5,tableB)", "ood_cal": "L_ood_cal(T=1.5,tableB)"}
    for term, key in names.items():
        assert warm.terms[term].item() == pytest.approx(GOLDEN[key], rel=RELATIVE)
    loose = hyper(inlier_threshold=0.5, confidence_threshold=0.6)
    cool = step(y, golden_heads(), calibration(0.5), loose, release, late=True)
    assert cool.accepted.tolist() == GOLDEN["selection_T=0.5"]["mask_pi0.5_tau0.6"]
    assert cool.pseudo.tolist() == GOLDEN["selection_T=0.5"]["pseudo"]
    assert cool.terms["fix"].item() == pytest.approx(GOLDEN["L_fix(strong,mask_pi0.5_tau0.6)"], rel=RELATIVE)
    assert not warm.accepted.any()
    total = warm.total + loose.lambda_fix * cool.terms["fix"]
    assert total.item() == pytest.approx(GOLDEN["branch_total_default_lambdas"], rel=RELATIVE)


@pytest.mark.parametrize("protocol", ["paper", "release"])
def test_temperatures_get_gradient_from_their_own_calibration_loss_alone(protocol: str) -> None:
    now = calibration(1.5, requires_grad=True)
    heads = golden_heads(z_l=golden_inputs()["Z"].requires_grad_(), o_l=golden_inputs()["O1"].requires_grad_())
    result = step(golden_inputs()["y"], heads, now, hyper(**EAGER), chosen(protocol), late=True)
    assert result.accepted.any() and result.terms["fix"] > 0
    source = {"cls_cal": (True, False), "ood_cal": (False, True)}
    for name, term in result.terms.items():
        if not term.requires_grad:
            assert name in ("socr", "fix")  # they do not touch the labelled records
            continue
        grads = torch.autograd.grad(term, [now.t_class, now.t_ova], retain_graph=True, allow_unused=True)
        assert tuple(grad is not None for grad in grads) == source.get(name, (False, False)), name


def test_pseudo_labels_and_smoothing_targets_carry_no_gradient() -> None:
    inputs = golden_inputs()
    names = Heads.__annotations__
    heads = golden_heads(**{name: getattr(golden_heads(), name).clone().requires_grad_() for name in names})
    result = step(inputs["y"], heads, calibration(1.5), hyper(**EAGER), chosen("paper"), late=True)
    into_weak = torch.autograd.grad(result.terms["fix"], [heads.z_1, heads.o_1], retain_graph=True, allow_unused=True)
    assert into_weak == (None, None)
    (into_strong,) = torch.autograd.grad(result.terms["fix"], [heads.z_s], retain_graph=True)
    assert bool((into_strong[result.accepted].abs().sum(dim=1) > 0).all())
    assert bool((into_strong[~result.accepted] == 0).all())
    # With empty tables the target is the confidence itself, the one case where a gradient could slip through.
    empty = Calibration(torch.tensor(1.0), torch.tensor(1.0), empty_table(), empty_table())
    open_tables = step(inputs["y"], heads, empty, hyper(), chosen("paper"), late=True)
    (grad,) = torch.autograd.grad(open_tables.terms["cls_cal"], [heads.z_l])
    p = heads.z_l.detach().softmax(dim=1)
    alpha = p.max(dim=1).values[:, None]
    true = torch.nn.functional.one_hot(inputs["y"], 3)
    targets = alpha * true + (1 - alpha) / 2 * (1 - true)
    torch.testing.assert_close(grad, (p - targets) / 6, rtol=1e-3, atol=1e-5)  # up to the 1e-5 inside the logarithm


def until(training: Training, iterations: int) -> CaliMatch:
    while training.n < iterations:
        training.iterate()
    assert isinstance(training.method, CaliMatch)
    return training.method


def test_adam_knows_nothing_of_a_temperature_before_the_start() -> None:
    """Its first update is then one whole learning rate, whatever the size of the gradient."""
    training = toy_training("calimatch", "release", iterations=100, epoch=2)
    method = until(training, 8)
    temperatures = [method.branch.t_class, method.branch.t_ova]
    assert method.start == 8
    for temperature in temperatures:
        assert temperature.grad is None and temperature not in training.optimizer.state and temperature.item() == 1.5
    assert bool(method.branch.table_class.isnan().all())
    until(training, 9)
    for temperature in temperatures:
        assert training.optimizer.state[temperature]["step"] == 1
        assert abs(temperature.item() - 1.5) == pytest.approx(0.01, rel=1e-3)
    assert not bool(method.branch.table_class.isnan().all())
