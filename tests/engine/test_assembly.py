"""What a cell of the grid and params.yaml come to in training."""

from __future__ import annotations

import pytest
import torch

from safeecgmatch.engine.contract import Setting
from safeecgmatch.engine.loop import Training
from tests.methods.harness import make_training

TRAIN = {"iterations": 56, "epoch": 7, "warm_up": 5, "batch": 12, "learning_rate": 0.02}


def training_of(name: str, **options: object) -> Training:
    return make_training(name, **({"seed": 2, "width": 4} | TRAIN | options))[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "ood", "batches", "own"),
    [
        ("safestudent", 30, (6, 6), {}),
        ("supervised", 60, (12, 0), {}),
        ("safeecgmatch", 30, (6, 6), {"lambda_sum": 3.0}),
    ],
)
def test_setting(name: str, ood: int, batches: tuple[int, int], own: dict[str, float]) -> None:
    """Half of a batch is unlabelled, for Supervised none."""
    training = training_of(name, ood=ood, **own)
    assert training.setting == Setting(
        num_classes=3, leads=12, samples=1000, sampling_rate=100, width=4, iterations=56, epoch=7, warm_up=5,
        labelled_batch=batches[0], unlabelled_batch=batches[1], learning_rate=0.02, seed=2, ood_level=ood, **own,
    )  # fmt: skip
    assert training.optimizer.param_groups[0]["lr"] == 0.02 and training.rng.seed == 2
    assert len(training.labelled) == 45 and len(training.pool) == 500
    assert training.setting == training.method.setting


def test_first_weights_depend_on_the_seed_alone() -> None:
    first, again, other = (training_of("adello", **changes) for changes in ({}, {"ood": 30}, {"seed": 1}))
    weights = [training.method.network.fc.weight for training in (first, again, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
