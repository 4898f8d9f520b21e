"""CompleMatch, the faithful variant."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from safeecgmatch.methods.complematch.losses import complementarity
from safeecgmatch.methods.complematch.method import step
from safeecgmatch.methods.parts.contrast import supcon_raw
from safeecgmatch.methods.parts.propagation import PseudoLabels
from tests.methods.toy import all_losses, one_batch, run_to, toy_training, weights


def test_step_on_plain_logits() -> None:
    generator = torch.Generator().manual_seed(0)
    z = list(torch.randn(3, 6, 3, generator=generator, dtype=torch.float64))
    v, other = torch.randn(6, 4, generator=generator), torch.randn(6, 3, generator=generator, dtype=torch.float64)
    y = torch.tensor([0, 1, 1])
    by_other = PseudoLabels(torch.tensor([2, 0, 1]), torch.tensor([True, False, True]))
    terms = step(z, v, other, y, by_other, 50.0)
    rows = torch.tensor([0, 1, 2, 3, 5])
    expected = torch.nn.functional.cross_entropy(z[0][rows], torch.tensor([0, 1, 1, 2, 1]))
    torch.testing.assert_close(terms["supervised"], expected)
    augmented = sum(torch.nn.functional.cross_entropy(part[:3], y) for part in z[1:])
    torch.testing.assert_close(terms["augmented"], augmented)
    torch.testing.assert_close(terms["contrast"], supcon_raw(v[:3], y, 50.0))
    torch.testing.assert_close(terms["complementarity"], complementarity(z[0], other))


def weighted(terms: dict[str, torch.Tensor], augmented: float) -> torch.Tensor:
    weights = {"supervised": 1.0, "augmented": augmented, "contrast": 0.05, "complementarity": 1.0}
    return torch.stack([weights[name.split(".")[0]] * value for name, value in terms.items()]).sum()


def test_warm_up_ramps_the_augmented_views_and_ignores_the_pool() -> None:
    training = toy_training("complematch", "paper")  # the warm-up is half of 24 iterations
    for n in (0, 3, 11):
        (losses,) = all_losses(training, n)
        torch.testing.assert_close(losses.total, weighted(losses.terms, n / 12))
        assert losses.accepted is not None and not losses.accepted.any() and len(losses.accepted) == 8
    assert not training.method.co_training.queues["time"].labels  # type: ignore[union-attr]
    losses.total.backward()
    idle = {name for name, p in training.method.named_parameters() if p.grad is None}
    assert idle == {name for name, _ in training.method.named_parameters() if "_first" in name or "_second" in name}


def test_two_optimiser_steps_per_iteration_afterwards() -> None:
    training = toy_training("complematch", "paper")
    run_to(training, 14)
    parts = training.method.losses(one_batch(training), 14)
    training.method.train()
    first = next(parts)
    assert first.step and set(first.terms) == {"simclr.time", "simclr.freq"} and first.accepted is None
    training.optimizer.zero_grad()
    first.total.backward()
    reached = {name.split(".")[1] for name, p in training.method.named_parameters() if p.grad is not None}
    assert reached == {"time", "freq", "time_first", "time_second", "freq_first", "freq_second"}
    before = weights(training)
    training.optimizer.step()
    training.optimizer.zero_grad()
    assert any(not torch.equal(value, before[name]) for name, value in weights(training).items())
    (second,) = parts
    assert not second.step and second.accepted is not None
    torch.testing.assert_close(second.total, weighted(second.terms, 0.5))


def test_pseudo_labels_are_accepted_once_the_queue_is_full() -> None:
    training = toy_training("complematch", "paper", iterations=40)
    run_to(training, 20)
    accepted = []
    for n in range(20, 30):
        losses = all_losses(training, n)[1]
        assert losses.accepted is not None
        accepted.append(int(losses.accepted.sum()))
    assert accepted[:2] == [0, 0] and sum(accepted[2:]) > 0


def test_views_of_a_record_are_the_same_in_every_iteration() -> None:
    method: Any = toy_training("complematch", "paper").method
    x = torch.randn(3, 2, 64, generator=torch.Generator().manual_seed(0))
    records = torch.tensor([7, 8, 7])
    first, later = method._views(x, records, 0), method._views(x.flip(0), records.flip(0), 9)
    for branch in ("time", "freq"):
        assert [part.shape for part in first[branch]] == [part.shape for part in later[branch]]
        for view in (1, 2):
            assert torch.equal(first[branch][view], later[branch][view].flip(0))
        assert not torch.equal(first[branch][0], later[branch][0].flip(0))  # the main view is drawn anew
    copies = method._views(x[:1].expand(3, -1, -1), records, 0)
    assert torch.equal(copies["time"][2][0], copies["time"][2][2])
    assert not torch.equal(copies["time"][2][0], copies["time"][2][1])
    fresh: Any = toy_training("complematch", "paper", switches={"static_views": False}).method
    assert not torch.equal(fresh._views(x, records, 0)["freq"][2], fresh._views(x, records, 1)["freq"][2])


def test_dropped_share_of_bins() -> None:
    method: Any = toy_training("complematch", "paper").method
    x = torch.randn(200, 2, 64, generator=torch.Generator().manual_seed(0))
    inputs = method._views(x, torch.arange(200), 0)
    original = torch.fft.rfft(x)
    amplitude = torch.hypot(original.real + 1e-6, original.imag + 1e-6)
    dropped = inputs["freq"][2][:, 0::2] != amplitude
    assert not dropped[..., 0].any()
    assert abs(float(dropped[..., 1:].double().mean()) - 0.1) < 0.01


@pytest.mark.parametrize("option", [{"time_view": "magnitude_warp", "warp_std": 0.05}, {"simclr_temperature": 0.1}])
def test_options_run(option: dict[str, Any]) -> None:
    assert len(all_losses(toy_training("complematch", "paper", switches=option), 20)) == 2
