"""SafeECGMatch's variants: one iteration of each by hand, and what may and may not pass between the branches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from safeecgmatch.config import Ablation
from safeecgmatch.engine.loop import Training
from safeecgmatch.engine.views import spectrum
from safeecgmatch.methods.safeecgmatch.method import SafeECGMatch
from safeecgmatch.methods.safeecgmatch.variants import VARIANTS
from safeecgmatch.methods.safeecgmatch.views import log_spectrum
from tests.methods.harness import bits, run, toy_training

BEYOND = [name for name in VARIANTS if name not in ("full", "no_freq_cal", "no_cal")]
EAGER = {"inlier_threshold": 0.5, "confidence_threshold": 0.36}  # so that records are selected from the start


def training_of(variant: str, protocol: str = "paper", lambda_sum: float = 1.0, **options: Any) -> Training:
    options = {"hyper": EAGER} | options
    return toy_training("safeecgmatch", protocol, variant=variant, lambda_sum=lambda_sum, **options)


def safe(training: Training) -> SafeECGMatch:
    assert isinstance(training.method, SafeECGMatch)
    return training.method


def test_coupled_branches_are_both_taught_what_neither_would_learn_alone() -> None:
    """Logits by hand: time is sure of class 0, frequency a little of class 1; their mean says 0 to both."""
    training = training_of("coupled")
    method = safe(training)
    training.iterate()
    method.after_outputs(method.validate_now(1))
    batch, _ = training.draw()
    with torch.no_grad():
        for branch, row in zip(method.branches().values(), ([6.0, 0.0, 0.0], [0.0, 1.0, 0.0]), strict=True):
            branch.network.fc.weight.zero_()
            branch.network.fc.bias.copy_(torch.tensor(row))
            branch.ova.weight.zero_()
            branch.ova.weight[3:] = 5.0  # features are not negative: every pair leans to "inlier"
            branch.t_class.fill_(1.0)
            branch.t_ova.fill_(1.0)
    time, freq = method.losses(batch, 5)
    assert time.accepted is not None and time.accepted.all() and (time.pseudo == 0).all()
    assert freq.rates["mask_rate.freq"].item() == 1.0
    for losses, name, row in ((time, "time", [6.0, 0.0, 0.0]), (freq, "freq", [0.0, 1.0, 0.0])):
        wanted = F.cross_entropy(torch.tensor([row]), torch.tensor([0])).item()
        assert losses.terms[f"fix.{name}"].item() == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_lambda_sum_reaches_the_time_branch_in_the_coupled_variant_alone(variant: str) -> None:
    """Without its frequency branch (0) nothing is left to be coupled; 1 and 3 differ by Adam's epsilon at most."""
    runs = [run(training_of(variant, lambda_sum=value, iterations=8, seed=2)) for value in (0.0, 1.0, 3.0)]
    assert any(row["mask_rate"] > 0 for row in runs[0].history)
    ends = {str(bits(safe(training).time.state_dict())) for training in runs}
    assert (len(ends) > 1) == (variant == "coupled")


def test_learned_t_changes_nothing_where_temperatures_are_learned_anyway() -> None:
    """Under `release`: the row of Table 2 equals that of the method by construction."""
    full, learned = (run(training_of(name, "release")).method.state_dict() for name in ("full", "learned_t"))
    assert bits(full) == bits(learned)


def test_branches_of_two_time_see_the_same_records_in_different_views() -> None:
    training = training_of("two_time")
    method, (batch, _) = safe(training), training.draw()
    views = method.views(batch)
    for time, second in zip(views["time"], views["freq"], strict=True):
        assert time.shape == second.shape and not torch.equal(time, second)
    assert (views["time"][0] - views["freq"][0]).abs().mean() < 0.5  # weak views of the same records
    outputs = method.eval().outputs(batch.x_u)
    z, _ = safe(training).branches()["freq"](batch.x_u)
    assert torch.equal(outputs["class_logits.freq"], z)
    assert not torch.equal(outputs["class_logits.freq"], outputs["class_logits.time"])  # networks of their own


def test_log_spectrum_is_standardised_over_the_record_and_keeps_the_relation_of_its_leads() -> None:
    x = torch.randn(4, 3, 50, generator=torch.Generator().manual_seed(2)) * torch.tensor([1.0, 5.0, 20.0])[:, None]
    y = log_spectrum(x)
    torch.testing.assert_close(y.mean(dim=(1, 2)), torch.zeros(4), atol=1e-6, rtol=0)
    torch.testing.assert_close(y.std(dim=(1, 2), correction=0), torch.ones(4))
    assert bool((y.mean(dim=2).diff(dim=1) > 0).all())  # a larger lead stays larger
    row = (1 + spectrum(x)[0]).log()
    torch.testing.assert_close(y[0], (row - row.mean()) / row.std(correction=0))
    assert torch.equal(log_spectrum(torch.zeros(1, 2, 10)), torch.zeros(1, 2, 6))


def test_masked_bins_of_a_log_spectrum_are_its_mean_and_the_others_those_of_the_weak_view() -> None:
    training = training_of("log_spectrum")
    _, first, _, masked = safe(training).views(training.draw()[0])["freq"]
    hidden = (masked == 0).all(dim=1)
    assert hidden.sum(dim=1).tolist() == [int(0.15 * first.shape[-1])] * 8
    assert torch.equal(masked, torch.where(hidden[:, None], torch.zeros(()), first))


@pytest.mark.parametrize("variant", BEYOND)
def test_every_variant_stores_three_predictions_and_both_pairs_of_temperatures(variant: str) -> None:
    training = run(training_of(variant, iterations=8))
    method = safe(training)
    assert set(method.predict(method.validate_now(8).outputs)) == {"time", "freq", "fused"}
    temperatures = {f"temperature.{head}.{branch}" for head in ("class", "ova") for branch in ("time", "freq")}
    assert temperatures | {"mask_rate", "mask_rate.freq", "pseudo_ood_share"} <= set(training.history[-1])


def test_the_config_knows_every_variant() -> None:
    names = [name for name in VARIANTS if name != "full"]
    assert Ablation(datasets=["ptbxl"], ood_levels=[60], variants=names, lambda_sum=1.0).variants == names  # type: ignore[arg-type]
