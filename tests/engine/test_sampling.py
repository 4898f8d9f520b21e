"""Sampling: the published order to the index, endless permutations, restorable places."""

from __future__ import annotations

import pytest
import torch

from safeecgmatch.engine.sampling import FixedOrderStream, PermutationStream, fixed_order
from tests.vectors import load_vector


@pytest.mark.parametrize("case", load_vector("scomatch_sampler")["cases"], ids=lambda case: f"n{case['n']}")
def test_published_order(case):
    order = fixed_order(case["n"], case["total"])
    assert len(order) == case["total"]
    assert order[: len(case["first_indices"])].tolist() == case["first_indices"]
    assert len(order.unique()) == case["distinct_indices"]


def test_fixed_order_repeats_every_epoch():
    stream = FixedOrderStream(n=7, batch=2, epoch=5)
    first = [stream.next().tolist() for _ in range(5)]
    assert [stream.next().tolist() for _ in range(5)] == first


def test_permutations_use_every_index_equally_often_and_straddle_borders():
    stream = PermutationStream(n=10, batch=4, generator=torch.Generator().manual_seed(3))
    drawn = torch.cat([stream.next() for _ in range(5)])
    assert drawn[:10].sort().values.tolist() == list(range(10))
    assert drawn[10:].sort().values.tolist() == list(range(10))
    assert drawn[:10].tolist() != drawn[10:].tolist()


def test_batch_larger_than_the_set():
    stream = PermutationStream(n=3, batch=8, generator=torch.Generator().manual_seed(0))
    assert torch.bincount(stream.next(), minlength=3).min() >= 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: PermutationStream(10, 4, torch.Generator().manual_seed(1)),
        lambda: FixedOrderStream(10, 4, 5),
    ],
)
def test_a_restored_stream_goes_on_where_it_stopped(make):
    stream, other = make(), make()
    for _ in range(3):
        stream.next()
    saved = stream.state()
    if isinstance(stream, PermutationStream):
        other.generator.set_state(stream.generator.get_state())
    expected = [stream.next().tolist() for _ in range(6)]
    other.load(saved)
    assert [other.next().tolist() for _ in range(6)] == expected
