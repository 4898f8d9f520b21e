"""Label propagation: both forms against the methods' own code and against dense arithmetic."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from safeecgmatch.methods.parts.propagation import curriculum, propagate_closed_form
from safeecgmatch.methods.tstfc.rounds import nearest_neighbours, propagate_rounds
from tests.conftest import ROOT
from tests.vectors import load_vector


def cases(name: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in load_vector(name)["cases"]]


@pytest.mark.parametrize("case", cases("tstfc_release_label_propagation"))
def test_rounds_reproduce_the_release(case: dict[str, Any]) -> None:
    vector = load_vector("tstfc_release_label_propagation")
    graph = nearest_neighbours(torch.tensor(case["embeddings"]), case["topk"], case.get("chunk_size", 512))
    labels = torch.tensor(case["labels_minus1_is_unlabelled"])
    scores = propagate_rounds(graph, labels, case["num_classes"], case["alpha"], case["iters"])
    torch.testing.assert_close(scores, torch.tensor(case["scores"]), atol=vector["atol"], rtol=vector["rtol"])


@pytest.mark.parametrize("case", cases("tstfc_original_label_propagation"))
def test_closed_form_and_curriculum_reproduce_the_original(case: dict[str, Any]) -> None:
    vector = load_vector("tstfc_original_label_propagation")
    labels = torch.tensor(case["labels_minus1_is_unlabelled"])
    scores = propagate_closed_form(
        torch.tensor(case["embeddings"]), labels, case["num_classes"], case["topk"], case["sigma"], case["alpha"]
    )
    expected = torch.tensor(case["F"], dtype=torch.float64)
    torch.testing.assert_close(scores, expected, atol=vector["atol"], rtol=vector["rtol"])
    selected = curriculum(scores, labels < 0, case["p_cutoff"])
    assert selected.labels.tolist() == case["argmax_label"]
    assert selected.accepted.tolist() == case["selected_mask_all_nodes"]
    confidence = scores.softmax(dim=1).amax(dim=1)
    torch.testing.assert_close(confidence, torch.tensor(case["softmax_F_max"]).double(), atol=1e-3, rtol=1e-3)


def dense_rounds(features: Tensor, labels: Tensor, k: int, alpha: float, rounds: int) -> Tensor:
    """The same propagation with full n x n matrices, in double precision."""
    unit = F.normalize(features.double(), dim=1)
    similarity = unit @ unit.T
    similarity.fill_diagonal_(-torch.inf)
    bar = similarity.topk(k, dim=1).values[:, -1:]
    transition = similarity.masked_fill(similarity < bar, -torch.inf).softmax(dim=1)
    seeds = torch.zeros(len(labels), 3, dtype=torch.float64)
    seeds[labels >= 0] = F.one_hot(labels[labels >= 0], 3).double()
    scores = torch.where((labels >= 0)[:, None], seeds, seeds.sum(0) / seeds.sum())
    for _ in range(rounds):
        scores = alpha * transition @ scores + (1 - alpha) * seeds
        scores[labels >= 0] = seeds[labels >= 0]
        scores = scores / scores.sum(dim=1, keepdim=True)
    return scores


def random_pool(n: int, dimensions: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(n, dimensions, generator=generator)
    labels = torch.full((n,), -1)
    labels[: n // 10] = torch.arange(n // 10) % 3
    return features, labels


@pytest.mark.parametrize("chunk", [1, 64, 500, 512])
def test_chunked_rounds_equal_the_dense_computation(chunk: int) -> None:
    features, labels = random_pool(500, 64)
    scores = propagate_rounds(nearest_neighbours(features, 40, chunk), labels, 3, 0.9, 20)
    torch.testing.assert_close(scores.double(), dense_rounds(features, labels, 40, 0.9, 20), atol=1e-5, rtol=0)


def test_alpha_cancels_in_the_rounds() -> None:
    features, labels = random_pool(200, 8)
    graph = nearest_neighbours(features, 10)
    strong, weak = (propagate_rounds(graph, labels, 3, alpha, 20) for alpha in (0.9, 0.1))
    torch.testing.assert_close(strong, weak, atol=1e-6, rtol=0)


def test_the_release_rounds_accept_nothing_at_the_share_of_seeds_of_the_benchmark() -> None:
    generator = torch.Generator().manual_seed(1)
    true = torch.arange(3000) % 3
    features = 3 * torch.eye(32)[true] + 0.3 * torch.randn(3000, 32, generator=generator)
    labels = torch.where(torch.arange(3000) < 30, true, -1)
    scores = propagate_rounds(nearest_neighbours(features, 40), labels, 3, 0.9, 20)
    assert (scores[30:].argmax(dim=1) == true[30:]).double().mean() > 0.95
    assert scores[30:].max() < 0.95


def test_a_node_without_path_to_a_seed_has_no_score() -> None:
    embeddings = torch.tensor([[0.0], [0.1], [100.0], [100.1]])
    scores = propagate_closed_form(embeddings, torch.tensor([0, -1, -1, -1]), 2, 2, 0.25, 0.99)
    assert torch.equal(scores[2:], torch.zeros(2, 2, dtype=torch.float64))
    assert scores[1, 0] > 1


def test_identical_nodes_do_not_break_the_closed_form() -> None:
    scores = propagate_closed_form(torch.zeros(12, 4), torch.tensor([0, 1] + [-1] * 10), 2, 3, 0.25, 0.99)
    assert torch.isfinite(scores).all()


@pytest.mark.slow
def test_a_whole_pool_takes_seconds_and_little_memory() -> None:
    code = "from benchmarks.propagation import *; print(measure(15_000, 64, 40)[1], peak_megabytes())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    seconds, megabytes = (float(value) for value in done.stdout.split())
    assert seconds < 5 and megabytes < 1024
