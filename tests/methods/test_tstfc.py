"""TS-TFC, the faithful variant."""

from __future__ import annotations

import pytest
import torch

from safeecgmatch.engine.contract import Evaluation
from safeecgmatch.methods.parts.propagation import PseudoLabels, better_branch
from safeecgmatch.methods.tstfc.method import step
from tests.methods.harness import toy_training
from tests.vectors import load_vector


def test_step_reproduces_the_original() -> None:
    vector = load_vector("tstfc_original_step_losses")
    unlabelled = torch.tensor(vector["unlabelled_mask"]).bool()
    order = torch.cat([torch.where(~unlabelled)[0], torch.where(unlabelled)[0]])
    labels = torch.tensor(vector["label_or_time_pseudo"])[~unlabelled]
    for branch, other in (("time", "freq"), ("freq", "time")):
        linear = torch.tensor(vector[f"linear_{branch}"], requires_grad=True)
        v = torch.tensor(vector[f"proj_{branch}"], requires_grad=True)
        by_other = PseudoLabels(
            torch.tensor(vector[f"label_or_{other}_pseudo"])[unlabelled],
            torch.tensor(vector[f"selected_by_{other}"])[unlabelled],
        )
        # The original puts a softmax before the loss; given as logits, its output gives its numbers.
        terms = step(linear.softmax(dim=1)[order], v[order], labels, by_other, vector["T_supcon"])
        loss = terms["supervised"] + vector["coef_supcon"] * terms["contrast"]
        assert float(loss.detach()) == pytest.approx(vector[f"loss_{branch}"], abs=vector["atol"])
        loss.backward()
        for tensor, name in ((linear, "linear"), (v, "proj")):
            expected = torch.tensor(vector["grads"][f"{name}_{branch}"])
            assert tensor.grad is not None
            torch.testing.assert_close(tensor.grad, expected, atol=vector["atol"], rtol=vector["rtol"])


def test_gain_and_offset_of_a_lead_do_not_matter() -> None:
    method = toy_training("tstfc", "paper").method.eval()
    x = torch.randn(4, 2, 64, generator=torch.Generator().manual_seed(0))
    # Of the time branch alone: the phase of the removed mean is rounding noise.
    first, second = (method.outputs(part)["class_logits.time"] for part in (x, 5 * x + 2))
    torch.testing.assert_close(first, second, atol=1e-4, rtol=1e-3)


def test_the_better_branch_on_validation_is_reported_and_travels_with_the_weights() -> None:
    labels = torch.tensor([0, 1, 2])
    right, wrong = torch.eye(3), torch.eye(3).roll(1, dims=0)
    method = toy_training("tstfc", "paper").method
    for time, freq, expected in [(right, wrong, "time"), (wrong, right, "freq"), (right, right, "time")]:
        outputs = {"class_logits.time": time, "class_logits.freq": freq}
        method.after_outputs(Evaluation(1, outputs, labels))
        assert method.reported_branch() == expected == ("time", "freq")[better_branch(outputs, labels)]
    method.after_outputs(Evaluation(1, {"class_logits.time": wrong, "class_logits.freq": right}, labels))
    other = toy_training("tstfc", "paper").method
    other.load_state_dict(method.state_dict())
    assert other.reported_branch() == "freq"
