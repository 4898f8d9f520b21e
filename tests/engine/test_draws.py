"""Which records every method sees, through the real loop's draw: the published order, or permutations by the seed."""

from __future__ import annotations

import pytest
import torch

from safeecgmatch.protocols import known_methods
from tests.methods.harness import BATCH, POOL, toy_training

LABELLED, EPOCH = 24, -(-POOL // BATCH)
# Methods whose published code repeats one order in every epoch and for every seed.
FIXED = {"openmatch", "calimatch", "safeecgmatch", "scomatch", "safestudent"}


def draws(name: str, protocol: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Labelled rows and pool positions of two epochs; what a batch says of its records is checked on the way."""
    training = toy_training(name, protocol, seed=seed)
    labelled, pool = [], []
    for _ in range(2 * EPOCH):
        batch, hidden = training.draw()
        assert training.labelled.labels is not None and training.pool.labels is not None
        assert torch.equal(batch.x_l, training.labelled.source.gather(batch.record_l))
        assert torch.equal(batch.y_l, training.labelled.labels[batch.record_l])
        if training.setting.unlabelled_batch:
            assert torch.equal(batch.x_u, training.pool.source.gather(batch.record_u))
            assert torch.equal(batch.record_u, training.pool.rows[batch.position_u])
        assert torch.equal(hidden, training.pool.labels[batch.position_u])
        labelled.append(batch.record_l)
        pool.append(batch.position_u)
    return torch.cat(labelled), torch.cat(pool)


@pytest.mark.parametrize("name", known_methods())
@pytest.mark.parametrize("protocol", ["paper", "release"])
def test_order(name: str, protocol: str) -> None:
    first, second = draws(name, protocol, 1), draws(name, protocol, 2)
    for drawn, other, size in zip(first, second, (LABELLED, POOL), strict=True):
        if not len(drawn):
            assert name == "supervised"
        elif protocol == "release" and name in FIXED:
            generator = torch.Generator().manual_seed(0)
            order = torch.cat([torch.randperm(size, generator=generator) for _ in range(EPOCH * BATCH)])
            assert torch.equal(drawn, order[: EPOCH * BATCH].repeat(2)) and torch.equal(drawn, other)
        else:
            for part in drawn.split(size):
                assert len(part.unique()) == len(part)
            assert not torch.equal(drawn, other)
