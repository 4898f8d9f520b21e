from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from safeecgmatch.engine.contract import Prediction
from safeecgmatch.engine.loop import Training
from safeecgmatch.engine.signals import SignalSet
from safeecgmatch.methods.calimatch.method import CaliMatch
from safeecgmatch.methods.parts.branch import Branch
from safeecgmatch.methods.safeecgmatch.method import SafeECGMatch, fuse
from safeecgmatch.methods.safeecgmatch.views import spectral_views
from safeecgmatch.metrics import auroc
from tests.methods.harness import accepted_unseen_share, bits, learn, make_training, run, toy_training

EAGER = {"inlier_threshold": 0.4, "confidence_threshold": 0.35}  # so that records are selected from the start


def safe(training: Training) -> SafeECGMatch:
    assert isinstance(training.method, SafeECGMatch)
    return training.method


def freq(method: SafeECGMatch) -> Branch:
    assert method.freq is not None
    return method.freq


def test_time_branch_is_calimatch_bit_for_bit_whatever_lambda_sum() -> None:
    """The finding: with the published code and with the paper's equations the branches do not touch each other."""
    release = {"hyper": EAGER, "switches": {"stop_at_val_1": False}}
    alone = toy_training("calimatch", "release", **release)
    assert isinstance(alone.method, CaliMatch)
    start = {name: value.clone() for name, value in alone.method.branch.state_dict().items()}
    run(alone)
    ancestor = bits(alone.method.branch.state_dict())
    assert ancestor != bits(start) and alone.history[-1]["mask_rate"] > 0.1

    frequency = {}
    for lambda_sum in (0.0, 1 / 3, 1.0, 3.0):
        training = toy_training("safeecgmatch", "release", lambda_sum=lambda_sum, **release)
        method = safe(training)
        method.time.load_state_dict(start)
        run(training)
        assert training.n == 24
        assert bits(method.time.state_dict()) == ancestor, f"lambda_sum {lambda_sum} reached the time branch"
        assert [row["val_accuracy"] for row in training.history] == [row["val_accuracy"] for row in alone.history]
        if lambda_sum:
            frequency[lambda_sum] = bits(freq(method).network.state_dict())
    assert len({frozenset(branch.items()) for branch in frequency.values()}) == 3, "lambda_sum does nothing at all"


def test_without_frequency_branch_nothing_of_it_is_left() -> None:
    training = run(toy_training("safeecgmatch", "paper", lambda_sum=0.0))
    method = safe(training)
    assert method.freq is None and method.reported_branch() == "time"
    assert not [name for name in method.state_dict() if name.startswith("freq")]
    assert set(method.predict(method.validate_now(20).outputs)) == {"time"}
    assert not [name for name in training.history[-1] if name.endswith(".freq")]


def test_fusing_saturated_branches_stays_finite() -> None:
    sure = Prediction(torch.tensor([[0.0, -200.0]]), torch.tensor([0.0]))
    other = Prediction(torch.tensor([[-200.0, 0.0]]), torch.tensor([1.0]))
    fused = fuse(sure, other)
    assert fused.log_probs.tolist() == [[pytest.approx(math.log(0.5))] * 2] and fused.ood_score == torch.tensor([0.5])


def test_spectral_views() -> None:
    generator = torch.Generator().manual_seed(1)
    views = [torch.randn(5, 12, 100, generator=generator) for _ in range(4)]
    labelled, first, second, masked = spectral_views(views, generator)
    for view, spectral in zip(views, (labelled, first, second), strict=False):
        torch.testing.assert_close(spectral, torch.fft.rfft(view).abs())
    hidden = (masked == 0).all(dim=1)
    assert hidden.sum(dim=1).tolist() == [int(0.15 * 51)] * 5
    assert bool(torch.where(hidden[:, None], first, masked).equal(first)) and len(set(map(tuple, hidden.tolist()))) > 1


@pytest.mark.parametrize(("protocol", "shared"), [("paper", False), ("release", True)])
def test_frequency_tables_are_its_own_or_the_time_branch_s(protocol: str, shared: bool) -> None:
    method = safe(toy_training("safeecgmatch", protocol, seed=1, lambda_sum=1.0))
    method.after_outputs(method.validate_now(0))
    time, own = ({"class": b.table_class, "ova": b.table_ova} for b in (method.time, freq(method)))
    assert (bits(time) == bits(own)) == shared
    method.time.table_class.fill_(0.25)
    assert not bool((freq(method).table_class == 0.25).any())


def late_start(protocol: str, dataset: str, seed: int) -> tuple[Training, dict[str, SignalSet]]:
    """Pseudo-labels and calibration start at 40 % of the budget, of which the paper's 1 % would be too early."""
    methods = {"safeecgmatch": {"switches": {protocol: {"start": 20_000}}}}
    options = {"iterations": 300, "learning_rate": 0.005, "epoch": 15}
    training, sets, _ = make_training("safeecgmatch", protocol, dataset=dataset, seed=seed, methods=methods, **options)
    return training, sets


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["paper", "release"])
def test_fewer_unseen_records_are_accepted_than_the_pool_holds(protocol: str) -> None:
    """Of the mean over four seeds: 0.50 under `paper` (deviation of one seed 0.05), 0.58 under `release` (0.015).

    That is 4 and 2 standard errors below the pool's 0.6. One seed shows nothing, 0.605 was seen under `release`; nor do
    pseudo-labels from the first iterations on, where single seeds gave 0.31 to 0.68.
    """
    shares = []
    for seed in (1, 2, 3, 4):
        training, _ = late_start(protocol, "ptbxl", seed)
        shares.append(accepted_unseen_share(run(training)))
    print(shares)
    assert sum(shares) / len(shares) < 0.6


def scores_at_evaluations(training: Training, open_test: SignalSet, least_accuracy: float) -> list[float]:
    """Train to the end: AUROC of the time branch's score at every evaluation where it classifies so well."""
    method, labels, scores = safe(training), open_test.labels, []
    assert labels is not None
    unseen = labels >= training.setting.num_classes

    def judge(_: object) -> None:
        prediction = method.predict(method.outputs_on(open_test))["time"]
        assert prediction.ood_score is not None
        right = (prediction.log_probs.argmax(dim=1) == labels)[~unseen]
        if right.double().mean() > least_accuracy:
            scores.append(auroc(prediction.ood_score.numpy(), unseen.numpy()))

    training.run(lambda _: None, judge)
    return scores


@pytest.mark.slow
def test_the_one_vs_all_score_of_a_branch_that_classifies_well_finds_unseen_classes() -> None:
    """At evaluations with a poor accuracy it does not, which is most of them in trainings as short as the demo's."""
    scores: list[float] = []
    for dataset, seed in product(("ptbxl", "cinc21"), (2, 3)):
        training, sets = late_start("paper", dataset, seed)
        scores += scores_at_evaluations(training, sets["open_test"], least_accuracy=0.85)
    print(len(scores), "AUROC", sum(scores) / len(scores), scores)
    assert len(scores) >= 10 and sum(scores) / len(scores) > 0.6


@pytest.mark.slow
def test_calibration_from_the_start_holds_confidences_at_chance_only_with_tables_read_untempered() -> None:
    """`mixed` clips a target into the bin of the untempered confidence, so that nothing would raise it."""
    confidence = {}
    for axis in ("mixed", "tempered"):
        methods = {"safeecgmatch": {"switches": {"paper": {"smoothing_axis": axis}}}}
        _, training = learn("safeecgmatch", seed=2, methods=methods, learning_rate=0.002)
        logits = training.method.outputs_on(training.validation)["class_logits.time"]
        confidence[axis] = float(logits.softmax(dim=1).amax(dim=1).mean())
    print(confidence)
    assert confidence["mixed"] < 0.42 and confidence["tempered"] > confidence["mixed"] + 0.1
