"""SCOMatch: the whole training step against its vectors, the memory as state, and the adaptive threshold's clock."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from safeecgmatch.methods.scomatch.state import State, adaptive_ood_threshold
from safeecgmatch.methods.scomatch.step import Logits, step
from tests.methods.toy import assert_same, gradients, hyper_of, only_losses, run_to, toy_training
from tests.vectors import load_vector

EXACT = {"rtol": 0.0, "atol": 1e-6}
VECTOR = load_vector("scomatch_train_step")


def double(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


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


def test_draws_distinct_entries_only_when_there_are_enough() -> None:
    state = State(tuple(torch.tensor(float(j)) for j in range(10)), torch.zeros(10), torch.zeros(4), torch.tensor(0.9))
    generator = torch.Generator().manual_seed(1)
    assert state.draw(11, generator) == []
    drawn = [state.draw(8, generator) for _ in range(2)]
    assert all(len(set(positions)) == 8 for positions in drawn)
    assert drawn[0] != drawn[1]


def test_plus_on_weak_rows_is_the_mean_over_both_views_with_gradient_through_both() -> None:
    z_w = double([[9.0, 0, 0, 0], [0, 0, 0, 9.0]]).requires_grad_()
    z_s = double([[1.0, 0, 0, 0], [0, 1.0, 0, 0]])
    z = Logits(double([[0.0] * 4]), torch.empty(0, 4), z_w, z_s)
    y, scores, state = torch.tensor([0]), torch.empty(0), empty_state()
    strong_only = step(z, y, scores, z_w, state, True, hyper_of("scomatch")).terms["plus"]
    assert not strong_only.requires_grad
    both = step(z, y, scores, z_w, state, True, hyper_of("scomatch", plus_on_weak=True)).terms["plus"]
    weak_loss = -(z_w.log_softmax(1)[0, 0] + z_w.log_softmax(1)[1, 3]) / 2
    assert both.item() == pytest.approx((strong_only.item() + weak_loss.item()) / 2)
    both.backward()
    assert bool(z_w.grad.any())


def fed_rows(protocol: str, n: int) -> int:
    """How many records iteration `n` feeds to the network in one pass (8 labelled and 8 unlabelled ones here)."""
    training = toy_training("scomatch", protocol)
    run_to(training, n)
    sizes: list[int] = []
    training.method.network.stem.register_forward_hook(lambda module, inputs, output: sizes.append(len(inputs[0])))
    training.iterate()
    (size,) = sizes
    return size


def test_one_forward_with_memory_as_soon_as_it_holds_a_batch_and_twice_the_views_under_release() -> None:
    assert fed_rows("paper", 7) == 8 + 8 + 8
    assert fed_rows("paper", 8) == 8 + 8 + 8 + 8
    assert fed_rows("release", 7) == 8 + 2 * (8 + 8)
    assert fed_rows("release", 8) == 8 + 8 + 2 * (8 + 8)


def test_memory_keeps_the_weak_view_as_it_was_fed_and_forgets_the_oldest() -> None:
    training = toy_training("scomatch", "paper", hyper={"memory": 5})
    run_to(training, 5)
    first, second = training.method.state.items[:2]
    run_to(training, 6)
    assert len(training.method.state.items) == len(training.method.state.scores) == 5
    assert training.method.state.items[0] is second and training.method.state.items[0] is not first
    assert training.method.state.items[0].shape == (2, 64)


def thresholds(protocol: str, moments: list[int]) -> list[float]:
    """The threshold before each of the iterations `moments`, with tallies that would give 0.855 at an update."""
    training = toy_training("scomatch", protocol, iterations=50_000, epoch=1000, pool=14_850)
    method, values = training.method, []
    for n in range(max(moments) + 1):
        method.state = State((), torch.empty(0), torch.tensor([100, 0, 0, 90]), method.state.tau_ood)
        method.before_step(n)
        if n in moments:
            values.append(round(method.state.tau_ood.item(), 6))
    return values


def test_threshold_clock_under_paper_counts_all_iterations_and_never_resets() -> None:
    assert thresholds("paper", [0, 464, 695, 696, 1000, 1001]) == [0.95, 0.95, 0.95, 0.855, 0.855, 0.855]


def test_threshold_clock_under_release_starts_anew_in_each_epoch() -> None:
    assert thresholds("release", [232, 3928, 4000, 4231, 4232, 4999, 5000, 5231, 5232]) == [
        0.95, 0.95, 0.95, 0.95, 0.855, 0.855, 0.95, 0.95, 0.855,
    ]  # fmt: skip


def test_a_small_pool_has_a_threshold_clock_too() -> None:
    """U = max(1, pool / 64); an epoch of the published code lasts at least U + 1 iterations."""
    method = toy_training("scomatch", "release", 20, 1, pool=8, switches={"start": 0}).method
    values = []
    for n in range(6):
        method.state = State((), torch.empty(0), torch.tensor([100, 0, 0, 90]), method.state.tau_ood)
        method.before_step(n)
        values.append(round(method.state.tau_ood.item(), 6))
    assert values == [0.95, 0.855] * 3


def test_a_checkpoint_holds_the_whole_state() -> None:
    items, scores = (torch.zeros(2, 64), torch.ones(2, 64)), torch.tensor([0.1, 0.2])
    state = State(items, scores, torch.tensor([1, 2, 3, 4]), torch.tensor(0.8))
    first, second = (toy_training("scomatch", "paper").method for _ in range(2))
    first.state = state
    second.load_memory(first.memory())
    assert_same(vars(second.state), vars(state))


def test_an_update_empties_the_tallies() -> None:
    state = State((), torch.empty(0), torch.tensor([60, 20, 20, 80]), torch.tensor(0.95)).renewed(0.95, 0.75)
    assert state.tallies.tolist() == [0, 0, 0, 0]
    assert state.tau_ood.item() == pytest.approx(0.76)


def test_gates_and_gradients() -> None:
    training = toy_training("scomatch", "paper", iterations=50_000, epoch=1000)
    assert training.method.network.fc.weight.std().item() == pytest.approx(0.02, rel=0.5)
    run_to(training, 9)  # the memory holds a batch
    early, late = only_losses(training, 499).terms, only_losses(training, 500).terms
    assert early["memory"].item() == early["plus"].item() == 0.0
    assert late["memory"].item() > 0.0
    reached = gradients(training, 500)
    assert all(reached.values())
    assert "network.fc.bias" not in reached


def test_prediction_drops_the_unseen_logit_and_scores_by_it() -> None:
    method = toy_training("scomatch", "paper").method
    prediction = method.predict({"open_logits.main": torch.tensor([[2.0, 0.0, 0.0, 5.0]])})["main"]
    assert prediction.log_probs.exp().sum().item() == pytest.approx(1.0)
    assert prediction.log_probs.shape == (1, 3) and prediction.log_probs.argmax().item() == 0
    assert prediction.ood_score.item() == pytest.approx(0.9407, abs=1e-3)
