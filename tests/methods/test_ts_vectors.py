"""The losses of ECGMatch, TS-TFC and CompleMatch against values of the methods' own code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from safeecgmatch.methods.complematch.losses import complementarity, simclr
from safeecgmatch.methods.ecgmatch.losses import (
    relationship_cosine,
    relationship_euclidean,
    relationship_loss,
    relationship_pearson,
    relationship_squared,
)
from safeecgmatch.methods.parts.contrast import supcon_raw, supcon_unit
from safeecgmatch.methods.parts.losses import exponential_ramp
from safeecgmatch.methods.tstfc.rounds import masked_soft_cross_entropy
from tests.vectors import load_vector

Case = dict[str, Any]
DTYPES = [torch.float32, torch.float64]
# For each vector a loss of its case and leaves, and the leaves with their gradients.
LOSSES: dict[str, tuple[Callable[..., Tensor], dict[str, str]]] = {
    "tstfc_release_supcon": (
        lambda case, v: supcon_unit(v, torch.tensor(case["labels"]), case["temperature"]),
        {"raw_projection": "grad_raw_projection"},
    ),
    "tstfc_original_supcon": (
        lambda case, v: supcon_raw(v, torch.tensor(case["labels"]), case["temperature"]),
        {"embeddings": "grad"},
    ),
    "tstfc_release_soft_ce": (
        lambda case, z: masked_soft_cross_entropy(
            z, torch.tensor(case["targets"], dtype=z.dtype), torch.tensor(case["mask"]), case["use_confidence_weight"]
        ),
        {"logits": "grad_logits"},
    ),
    "complematch_original_simclr": (
        lambda case, first, second: simclr(first, second, case["tau"]),
        {"z1": "grad_z1", "z2": "grad_z2"},
    ),
}


def close(actual: Tensor, expected: Any, vector: Case) -> None:
    wanted = torch.tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual.detach(), wanted, atol=vector["atol"], rtol=vector["rtol"])


def cases(name: str) -> list[Any]:
    vector = load_vector(name)
    return [pytest.param(vector | case, id=str(case.get("name", case.get("tau")))) for case in vector["cases"]]


def close_with_gradients(loss: Tensor, wanted: Any, case: Case, leaves: dict[str, Tensor]) -> None:
    """The loss, and its gradient in every leaf; an empty one means zeros.

    Values near 0.9 of float32 arithmetic at temperature 0.07 carry a few units of 1e-5.
    """
    close(loss, wanted, case)
    loss.backward()
    loose = case | ({"atol": 1e-4, "rtol": 1e-4} if "raw_projection" in case else {})
    for key, leaf in leaves.items():
        close(leaf.grad, case[key] or torch.zeros_like(leaf).tolist(), loose)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "case"), [
    pytest.param(name, *case.values, id=f"{name}-{case.id}") for name in LOSSES for case in cases(name)
])  # fmt: skip
def test_losses_and_gradients(name: str, case: Case, dtype: torch.dtype) -> None:
    loss, gradients = LOSSES[name]
    leaves = {key: torch.tensor(case[key], dtype=dtype, requires_grad=True) for key in gradients}
    wanted = {gradient: leaves[key] for key, gradient in gradients.items()}
    close_with_gradients(loss(case, *leaves.values()), case["loss"], case, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", cases("complematch_original_complementarity_loss"))
@pytest.mark.parametrize(("mine", "other", "key"), [("time", "freq", "loss"), ("freq", "time", "loss_freq_side")])
def test_complementarity_from_both_sides(case: Case, dtype: torch.dtype, mine: str, other: str, key: str) -> None:
    own, others = (torch.tensor(case[f"logits_{name}"], dtype=dtype, requires_grad=True) for name in (mine, other))
    loss = complementarity(own, others, case["threshold"], case["k"])
    close_with_gradients(loss, case[key], case, {f"grad_{mine}_with_{other}_detached": own})
    assert others.grad is None


@pytest.mark.parametrize("case", cases("ecgmatch_release_similarity"))
def test_correlation_map_of_the_release(case: Case) -> None:
    vector = load_vector("ecgmatch_release_similarity")
    close(relationship_pearson(torch.tensor(case["scores"])), case["matrix"], vector)


@pytest.mark.parametrize("case", cases("ecgmatch_release_relationship_loss"))
def test_relationship_loss_of_the_release(case: Case) -> None:
    vector = load_vector("ecgmatch_release_relationship_loss")
    logits = torch.tensor(case["logits"], requires_grad=True)
    matrix = relationship_pearson(logits.softmax(dim=1))
    close(matrix, case["matrix"], vector)
    loss = relationship_loss(matrix, torch.tensor(case["target"]))
    close(loss, case["loss"], vector)
    loss.backward()
    if case["loss"] > 1e-5:  # below that the direction of the gradient is rounding noise
        close(logits.grad, case["grad_logits"], vector)


@pytest.mark.parametrize(
    ("key", "relationship"),
    [
        ("cosine", relationship_cosine),
        ("pearson", relationship_squared),
        ("euclid", relationship_euclidean),
    ],
)
@pytest.mark.parametrize("case", cases("ecgmatch_original_similarity"))
def test_relationship_maps_of_the_original(case: Case, key: str, relationship: Callable[[Tensor], Tensor]) -> None:
    close(relationship(torch.tensor(case["scores"])), case[key], load_vector("ecgmatch_original_similarity"))


def test_ramp() -> None:
    vector = load_vector("ecgmatch_release_rampup")
    ramp = [exponential_ramp(t, vector["W"]) for t in vector["t"]]
    assert ramp == pytest.approx(vector["ramp"], abs=vector["atol"]) and exponential_ramp(0, 0) == 1.0


def test_relationship_loss_is_flat_at_its_target() -> None:
    matrix = torch.eye(3, requires_grad=True)
    relationship_loss(matrix, torch.eye(3)).backward()
    assert matrix.grad is not None and torch.equal(matrix.grad, torch.zeros(3, 3))
