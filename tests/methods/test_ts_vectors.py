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

DTYPES = [torch.float32, torch.float64]


def close(actual: Tensor, expected: Any, vector: dict[str, Any]) -> None:
    wanted = torch.tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual.detach(), wanted, atol=vector["atol"], rtol=vector["rtol"])


def close_with_gradients(loss: Tensor, wanted: Any, vector: dict[str, Any], *leaves: tuple[Tensor, Any]) -> None:
    """The loss, and its gradient in every leaf; an empty one means zeros."""
    close(loss, wanted, vector)
    loss.backward()
    for leaf, expected in leaves:
        assert leaf.grad is not None
        close(leaf.grad, expected or torch.zeros_like(leaf).tolist(), vector)


def cases(name: str) -> list[Any]:
    return [pytest.param(case, id=str(case.get("name", case.get("tau")))) for case in load_vector(name)["cases"]]


def with_gradient(rows: Any, dtype: torch.dtype) -> Tensor:
    return torch.tensor(rows, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", cases("tstfc_release_supcon"))
def test_supcon_on_unit_rows(case: dict[str, Any], dtype: torch.dtype) -> None:
    vector = load_vector("tstfc_release_supcon")
    rows = with_gradient(case["raw_projection"], dtype)
    loss = supcon_unit(rows, torch.tensor(case["labels"]), case["temperature"])
    close(loss, case["loss"], vector)
    loss.backward()
    assert rows.grad is not None
    expected = case["grad_raw_projection"] or torch.zeros_like(rows).tolist()
    # Values near 0.9 of float32 arithmetic at temperature 0.07 carry a few units of 1e-5.
    torch.testing.assert_close(rows.grad, torch.tensor(expected, dtype=dtype), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", cases("tstfc_original_supcon"))
def test_supcon_on_raw_rows(case: dict[str, Any], dtype: torch.dtype) -> None:
    vector = load_vector("tstfc_original_supcon")
    rows = with_gradient(case["embeddings"], dtype)
    loss = supcon_raw(rows, torch.tensor(case["labels"]), case["temperature"])
    close_with_gradients(loss, case["loss"], vector, (rows, case["grad"]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", cases("tstfc_release_soft_ce"))
def test_masked_soft_cross_entropy(case: dict[str, Any], dtype: torch.dtype) -> None:
    vector = load_vector("tstfc_release_soft_ce")
    logits, targets = with_gradient(vector["logits"], dtype), torch.tensor(vector["targets"], dtype=dtype)
    mask = torch.tensor(case["mask"])
    loss = masked_soft_cross_entropy(logits, targets, mask, case["use_confidence_weight"])
    close_with_gradients(loss, case["loss"], vector, (logits, case["grad_logits"]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", cases("complematch_original_complementarity_loss"))
def test_complementarity_from_both_sides(case: dict[str, Any], dtype: torch.dtype) -> None:
    vector = load_vector("complematch_original_complementarity_loss")
    time, freq = with_gradient(case["logits_time"], dtype), with_gradient(case["logits_freq"], dtype)
    time_side = complementarity(time, freq, case["threshold"], case["k"])
    close_with_gradients(time_side, case["loss"], vector, (time, case["grad_time_with_freq_detached"]))
    assert freq.grad is None
    freq_side = complementarity(freq, time, case["threshold"], case["k"])
    close_with_gradients(freq_side, case["loss_freq_side"], vector, (freq, case["grad_freq_with_time_detached"]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", cases("complematch_original_simclr"))
def test_simclr(case: dict[str, Any], dtype: torch.dtype) -> None:
    vector = load_vector("complematch_original_simclr")
    first, second = with_gradient(case["z1"], dtype), with_gradient(case["z2"], dtype)
    loss = simclr(first, second, case["tau"])
    close_with_gradients(loss, case["loss"], vector, (first, case["grad_z1"]), (second, case["grad_z2"]))


@pytest.mark.parametrize("case", cases("ecgmatch_release_similarity"))
def test_correlation_map_of_the_release(case: dict[str, Any]) -> None:
    vector = load_vector("ecgmatch_release_similarity")
    close(relationship_pearson(torch.tensor(case["scores"])), case["matrix"], vector)


@pytest.mark.parametrize("case", cases("ecgmatch_release_relationship_loss"))
def test_relationship_loss_of_the_release(case: dict[str, Any]) -> None:
    vector = load_vector("ecgmatch_release_relationship_loss")
    logits = with_gradient(case["logits"], torch.float32)
    matrix = relationship_pearson(logits.softmax(dim=1))
    close(matrix, case["matrix"], vector)
    loss = relationship_loss(matrix, torch.tensor(case["target"]))
    close(loss, case["loss"], vector)
    loss.backward()
    assert logits.grad is not None
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
def test_relationship_maps_of_the_original(
    case: dict[str, Any], key: str, relationship: Callable[[Tensor], Tensor]
) -> None:
    close(relationship(torch.tensor(case["scores"])), case[key], load_vector("ecgmatch_original_similarity"))


def test_ramp() -> None:
    vector = load_vector("ecgmatch_release_rampup")
    ramp = [exponential_ramp(t, vector["W"]) for t in vector["t"]]
    assert ramp == pytest.approx(vector["ramp"], abs=vector["atol"]) and exponential_ramp(0, 0) == 1.0


def test_relationship_loss_is_flat_at_its_target() -> None:
    matrix = torch.eye(3, requires_grad=True)
    relationship_loss(matrix, torch.eye(3)).backward()
    assert matrix.grad is not None and torch.equal(matrix.grad, torch.zeros(3, 3))
