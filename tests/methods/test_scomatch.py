"""SCOMatch: the whole training step against its vectors, and the adaptive threshold's clock."""

from __future__ import annotations

import pytest
import torch

from safeecgmatch.engine.loop import Training
from safeecgmatch.methods.scomatch.state import State, adaptive_ood_threshold
from safeecgmatch.methods.scomatch.step import Logits, step
from tests.methods.harness import hyper_of, toy_training
from tests.vectors import EXACT, double, load_vector

VECTOR = load_vector("scomatch_train_step")


def empty_state(classes: int = 3) -> State:
    return State((), torch.empty(0), torch.zeros(classes + 1, dtype=torch.int64), torch.tensor(0.95))


@pytest.mark.parametrize("run", VECTOR["runs"], ids=lambda run: f"epoch {run['epoch']}")
def test_training_step_vector(run: dict) -> None:
    overrides = VECTOR["test_only_overrides"]
    hyper = hyper_of("scomatch", memory=overrides["queue_maxlen"])
    open_losses = run["epoch"] >= VECTOR["first_open_epoch"]
    state, generator = empty_state(), torch.Generator().manual_seed(0)
    for iteration in run["iterations"]:
        i, inputs, expected = iteration["i"], iteration["inputs"], iteration["expected"]
        if open_losses and i > 0 and i % overrides["tau_ood_update_period"] == 0:
            state = state.renewed(hyper.threshold, hyper.lowest_ood_threshold)
        assert state.tau_ood.item() == pytest.approx(expected["tau_ood_in_force"], abs=1e-6)
        drawn = state.draw(overrides["labelled_batch"], generator)
        memory = torch.stack([state.items[j] for j in drawn]) if drawn else torch.empty(0, 4, dtype=torch.float64)
        z = Logits(double(inputs["labelled"]), memory, double(inputs["weak"]), double(inputs["strong"]))
        z.labelled.requires_grad_(), z.strong.requires_grad_()
        result = step(z, torch.tensor(inputs["labels"]), state.scores[drawn], z.weak, state, open_losses, hyper)
        for name, key in {"supervised": "L_lab", "memory": "L_mem", "plus": "L_plus", "known": "L_known"}.items():
            assert result.terms[name].item() == pytest.approx(expected[key], abs=1e-6)
        assert result.total.item() == pytest.approx(expected["total"], abs=1e-6)
        result.total.backward()
        torch.testing.assert_close(z.labelled.grad, double(expected["grad_labelled"]), **EXACT)
        torch.testing.assert_close(z.strong.grad, double(expected["grad_strong_both_branches"]), **EXACT)
        assert result.plus_mask.tolist() == expected["plus_mask"]
        assert result.known_mask.tolist() == expected["known_mask"]
        assert result.pseudo.tolist() == expected["pseudo_plus"]
        assert result.pseudo_known.tolist() == expected["pseudo_known"]
        state = result.state
        assert state.scores.tolist() == pytest.approx(expected["queue_scores_after"], abs=1e-6)
        torch.testing.assert_close(torch.stack(state.items), double(expected["queue_items_after"]), **EXACT)
        assert len(state.items) == expected["queue_counter_after"]
        assert state.tallies.tolist() == expected["confident_counts_after"]


def test_ood_threshold_vector() -> None:
    vector = load_vector("scomatch_ood_threshold")
    for row in vector["rows"]:
        tallies = torch.tensor([row["n_confident_id"], 0, 0, row["n_confident_ood"]])
        threshold = adaptive_ood_threshold(tallies, vector["tau"], vector["clip"][0])
        assert threshold.item() == pytest.approx(row["tau_ood"], abs=1e-9)


def thresholds(training: Training, moments: list[int]) -> list[float]:
    """The threshold before each of the iterations `moments`, with tallies that would give 0.855 at an update."""
    method, values = training.method, []
    for n in range(max(moments) + 1):
        method.state = State((), torch.empty(0), torch.tensor([100, 0, 0, 90]), method.state.tau_ood)
        method.before_step(n)
        if n in moments:
            values.append(round(method.state.tau_ood.item(), 6))
    return values


@pytest.mark.parametrize(
    ("protocol", "usual", "renewed"),
    [
        ("paper", [0, 464, 695], [696, 1000, 1001]),  # counts all iterations and is never reset
        ("release", [232, 3928, 4000, 4231, 5000, 5231], [4232, 4999, 5232]),  # starts anew in each epoch
    ],
)
def test_threshold_clock(protocol: str, usual: list[int], renewed: list[int]) -> None:
    training = toy_training("scomatch", protocol, iterations=50_000, epoch=1000, pool=14_850)
    wanted = dict.fromkeys(usual, 0.95) | dict.fromkeys(renewed, 0.855)
    assert thresholds(training, list(wanted)) == [wanted[n] for n in sorted(wanted)]


def test_a_small_pool_has_a_threshold_clock_too() -> None:
    """U = max(1, pool / 64); an epoch of the published code lasts at least U + 1 iterations."""
    training = toy_training("scomatch", "release", 20, 1, pool=8, switches={"start": 0})
    assert thresholds(training, list(range(6))) == [0.95, 0.855] * 3


def test_head() -> None:
    head = toy_training("scomatch", "paper").method.network.fc
    assert head.weight.std().item() == pytest.approx(0.02, rel=0.5) and head.bias is None
