"""Generators: named, independent, restorable."""

from __future__ import annotations

import torch

from safeecgmatch.engine.generators import Generators, derived_seed


def test_seeds_depend_on_both_seed_and_purpose():
    seeds = {derived_seed(seed, purpose) for seed in range(50) for purpose in ("views", "weights", "pool order")}
    assert len(seeds) == 150
    assert derived_seed(1, "views") == 7990800120024562129


def test_a_purpose_does_not_disturb_another():
    alone, together = Generators(1), Generators(1)
    torch.rand(100, generator=together("noise"))
    assert torch.equal(torch.rand(5, generator=alone("views")), torch.rand(5, generator=together("views")))


def test_restored_generators_go_on():
    rng, other = Generators(1), Generators(1)
    torch.rand(7, generator=rng("views"))
    torch.rand(3, generator=rng.on_cpu("order"))
    other.load(rng.state(), rng.devices())
    for purpose in ("views", "order", "never used before"):
        assert torch.equal(torch.rand(5, generator=rng(purpose)), torch.rand(5, generator=other(purpose)))
