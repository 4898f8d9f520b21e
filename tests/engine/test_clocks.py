"""Moments, averages and epochs under budgets other than 50,000: nothing is lost, and nothing changes at 50,000."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from safeecgmatch.config import validate
from safeecgmatch.engine.contract import Setting
from safeecgmatch.errors import UserError
from safeecgmatch.methods.fixmatch.method import METHOD as FIXMATCH
from safeecgmatch.protocols import known_methods, read_protocol, switches
from safeecgmatch.reporting.published import benchmark_methods
from tests.methods.harness import toy_training

DEMO, SHORT = (100, 10, 600), (2000, 200, 14_850)  # iterations, epoch, pool; the toy draws 8 unlabelled at a time
FIXED = [name for name in known_methods() if switches(name, "release", {})["batch_order"] == "fixed"]
PROTOCOLS = ("paper", "release")
PAPER = set(benchmark_methods())  # of which the published code is known
WARMED = [
    (name, protocol, key)
    for name in known_methods()
    for key, entry in read_protocol(name).items()
    for protocol in PROTOCOLS
    if entry.get(protocol) == "warm_up"
]


def setting(iterations: int, epoch: int = 40) -> Setting:
    return replace(toy_training("supervised", "paper").setting, iterations=iterations, epoch=epoch, warm_up=7)


@pytest.mark.parametrize(
    ("moment", "iterations", "expected"),
    [(500, 50_000, 500), (500, 2_000, 20), (500, 20, 1), (0, 2_000, 0), (12_500, 2_000, 500), (50_000, 100, 100),
     ("warm_up", 2_000, 7), ("warm_up", 50_000, 7), ("4 epochs", 2_000, 160), ("4 epochs", 50_000, 160),
     ("0 epochs", 2_000, 0)],
)  # fmt: skip
def test_a_moment_in_iterations(moment, iterations, expected):
    assert setting(iterations).moment(moment) == expected


@pytest.mark.parametrize("moment", [-1, "warmup", "25%", " epochs", "-1 epochs", "25", "1.5 epochs", 0.5, True])
def test_what_is_no_moment(moment):
    values = switches("fixmatch", "paper", {"paper": {"start": moment}})
    with pytest.raises(UserError, match=r"'start"):
        validate(FIXMATCH.Switches, values, "fixmatch")


def test_an_average_forgets_as_much_over_a_short_run_as_over_the_whole_one():
    assert setting(50_000).decay(0.999) == 0.999
    assert setting(2_000).decay(0.999) ** 2_000 == pytest.approx(0.999**50_000)


@pytest.mark.parametrize(("name", "protocol", "key"), WARMED)
@pytest.mark.parametrize("iterations", [200, 50_000])
def test_whoever_has_the_papers_warm_up_takes_it_from_the_profile(name, protocol, key, iterations):
    """The word would mean nothing to a switch that is no moment, and so not in force."""
    method = toy_training(name, protocol, iterations, warm_up=17).method
    assert method.in_force()[key] == method.setting.moment(getattr(method.switches, key)) == 17


@pytest.mark.parametrize("name", sorted({name for name, _, key in WARMED if key == "start"} & PAPER))
def test_a_start_of_the_published_code_is_its_fifth_epoch_or_the_first_iteration(name):
    assert toy_training(name, "release", 2_000, 40).method.in_force()["start"] in (0, 160)


def test_who_stops_at_validation_accuracy_one():
    """Under `paper` nobody; in the published code all but Supervised and the methods for time series."""
    never = {"supervised", "ecgmatch", "tstfc", "complematch"}
    for name in PAPER:
        stops = [switches(name, protocol, {})["stop_at_val_1"] for protocol in PROTOCOLS]
        assert stops == [False, name not in never], name


@pytest.mark.parametrize(("iterations", "epoch", "pool"), [DEMO, SHORT])
@pytest.mark.parametrize("name", FIXED)
def test_the_fixed_order_reaches_every_pool_record_within_the_budget(name, iterations, epoch, pool):
    training = toy_training(name, "release", iterations, epoch, pool=pool)
    drawn = torch.cat([training.pool_stream.next() for _ in range(iterations)])
    assert len(drawn.unique()) == pool
    assert training.method.in_force()["epoch"] == -(-pool // 8)


@pytest.mark.parametrize("iterations", [2_000, 50_000])
def test_the_papers_epoch_is_taken_as_it_is_whatever_the_budget(iterations):
    for name in known_methods():
        assert toy_training(name, "release", iterations, 1_000, pool=14_850).method.epoch() == 1_000


def test_the_values_in_force_are_what_the_method_uses():
    ecgmatch = toy_training("ecgmatch", "paper", 2_000, 40, switches={"pretraining": 12_500}).method
    assert ecgmatch.in_force()["pretraining"] == ecgmatch.pretraining == 520, "up to an evaluation"
    adello = toy_training("adello", "paper", 2_000, 40).method
    assert adello.in_force()["distill_start"] == adello.distill_start == 381
    assert adello.in_force()["prior_decay"] == pytest.approx(0.999**25)
    student = toy_training("safestudent", "release", 2_000, 40).method.in_force()
    assert (student["phase_one"], student["teacher_every"]) == (400, 400)
