"""SafeECGMatch's time branch with learned temperatures is CaliMatch: the same bytes under one seed."""

from __future__ import annotations

import pytest
import torch

from tests.methods.harness import bits, run_to, toy_training

EPOCHS, EPOCH = 8, 3


def branch_bits(training, prefix: str) -> dict[str, bytes]:
    state = training.method.state_dict()
    return bits({name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)})


@pytest.mark.parametrize(
    ("protocol", "variant", "start"), [("paper", "learned_t", "warm_up"), ("release", "full", "1 epochs")]
)
def test_the_time_branch_trains_as_calimatch(protocol: str, variant: str, start: str) -> None:
    """Before the start of calibration, across it, and across evaluations, which build tables."""
    options = {
        "warm_up": 4,
        "learning_rate": 0.05,
        "switches": {"start": start},
        "hyper": {"confidence_threshold": 0.35, "inlier_threshold": 0.2},
    }
    both = toy_training("safeecgmatch", protocol, EPOCHS * EPOCH, EPOCH, variant=variant, lambda_sum=1.0, **options)
    alone = toy_training("calimatch", protocol, EPOCHS * EPOCH, EPOCH, **options)
    assert branch_bits(both, "time.") == branch_bits(alone, "branch."), "they start from the same weights"
    accepted = 0.0
    for n in range(1, EPOCHS * EPOCH + 1):
        for training in (both, alone):
            run_to(training, n)
        assert branch_bits(both, "time.") == branch_bits(alone, "branch."), f"after iteration {n}"
    for row, other in zip(both.history, alone.history, strict=True):
        assert row["mask_rate"] == other["mask_rate"]
        assert row["temperature.class.time"] == other["temperature.class.main"]
        accepted += row["mask_rate"]
    assert accepted > 0, "pseudo-labels were part of it"
    if variant == "learned_t":  # all else is SafeECGMatch's
        assert both.method.reported_branch() == "fused" and both.method.switches.selection_strict
    for branch in both.method.branches().values():
        assert branch.t_class.requires_grad and branch.t_class in both.optimizer.state
    assert both.history[-1]["temperature.class.time"] != 1.5, "and so were learned temperatures"
    ours, theirs = both.trajectory.arrays(), alone.trajectory.arrays()
    for name in ("log_probs", "ood_score"):
        for part in ("validation", "open_test"):
            assert ours[f"{part}.{name}.time"].tobytes() == theirs[f"{part}.{name}.main"].tobytes()


def test_fitted_temperatures_make_another_time_branch() -> None:
    """So that the comparison above can fail: the main run of `paper` starts alike and parts at the start."""
    full = toy_training("safeecgmatch", "paper", 12, 3, warm_up=4, lambda_sum=1.0)
    alone = toy_training("calimatch", "paper", 12, 3, warm_up=4)
    for training in (full, alone):
        run_to(training, 4)
    assert branch_bits(full, "time.network") == branch_bits(alone, "branch.network"), "nothing is calibrated yet"
    for training in (full, alone):
        run_to(training, 6)
    assert branch_bits(full, "time.network") != branch_bits(alone, "branch.network")


@pytest.mark.parametrize("variant", ["learned_no_freq_cal", "learned_two_time"])
def test_variants_of_the_learned_rule_share_its_time_branch(variant: str) -> None:
    found = []
    for name in ("learned_t", variant):
        training = toy_training("safeecgmatch", "paper", 12, 3, warm_up=4, variant=name, lambda_sum=1.0)
        run_to(training, 9)
        found.append(training)
    assert branch_bits(found[0], "time.") == branch_bits(found[1], "time.")
    assert branch_bits(found[0], "freq.") != branch_bits(found[1], "freq.")
    second = found[1].method.freq
    assert second.t_class.requires_grad is (variant == "learned_two_time")
    assert (float(second.t_class.detach()) == 1.0) is (variant == "learned_no_freq_cal")
    assert torch.isnan(second.table_class).all() == (variant == "learned_no_freq_cal")
