"""CompleMatch, faithful: its options, and whole iterations by the specification (as published: test_tstfc.py)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from safeecgmatch.engine.loop import Training
from safeecgmatch.methods.complematch import views
from tests.methods.harness import switches_of, toy_training
from tests.methods.oracle import (
    BATCH,
    Drawn,
    Expected,
    Tagged,
    cross_entropy,
    follow,
    found_in,
    replace_everywhere,
    taken,
    weak,
)
from tests.methods.test_tstfc import (
    EVERY,
    ITERATIONS,
    NAMES,
    OTHER,
    QUEUE,
    SMALL,
    CoTrainedOracle,
    amplitude_and_phase,
    standardised,
    supcon,
)


def test_views_are_drawn_anew_where_they_are_not_static() -> None:
    x, records = torch.randn(3, 2, 64, generator=torch.Generator().manual_seed(0)), torch.tensor([7, 8, 7])
    for static in (True, False):
        method = toy_training("complematch", "paper", switches={"static_views": static}).method
        first, later = (method._views(x, records, n)["freq"][2] for n in (0, 1))
        assert torch.equal(first, later) == static


def test_a_tenth_of_the_bins_is_dropped() -> None:
    assert switches_of("complematch", "paper").bin_dropout == 0.1


@pytest.mark.parametrize("option", [{"time_view": "magnitude_warp", "warp_std": 0.05}, {"simclr_temperature": 0.1}])
def test_options_run(option: dict[str, Any]) -> None:
    training = toy_training("complematch", "paper", switches=option)
    assert len(list(training.method.losses(training.draw()[0], 20))) == 2


WARM_UP = 6
SHARE, WARP_STD, TAU = 0.3, 0.2, 0.4  # dropped bins, warp, SimCLR: large enough to matter


def hashed(seed: int, records: Tensor, view: int, rows: int, columns: int) -> Tensor:
    """In place of the hash: a number in (0, 1) for each of its arguments and indices."""
    row, column = torch.arange(rows)[:, None], torch.arange(columns)
    mixed = torch.sin(12.9 * (records[:, None, None] + 1.0) + 78.2 * row + 37.7 * column + 5.3 * view + seed)
    return (43758.5 * mixed) % 1.0


def warp(x: Tensor, factors: Tensor) -> Tensor:
    """In place of the time warp: depends on every knot."""
    knots = torch.arange(factors.shape[2]) + 1.0
    return x.roll(1, dims=2) * (factors * knots).sum(dim=2, keepdim=True) / knots.sum()


def complementarity(ours: Tensor, theirs: Tensor) -> Tensor:
    a, b = (torch.sigmoid(15 * (z.softmax(dim=1).max(dim=1).values - 0.8)) for z in (ours, theirs.detach()))
    both, none, one = (a * b).mean(), ((1 - a) * (1 - b)).mean(), (a * (1 - b) + b * (1 - a)).mean()
    return -((-both).exp() + (-none).exp()).log() - one


def info_nce(first: Tensor, second: Tensor) -> Tensor:
    cosines = F.normalize(first, dim=1) @ F.normalize(second, dim=1).T
    return cross_entropy(cosines / TAU, torch.arange(len(first))).mean()


class CompleMatchOracle(CoTrainedOracle):
    def __init__(self, training: Training, cutoff: float) -> None:
        super().__init__(training, cutoff)
        self.labelled, self.pool = training.labelled, training.pool

    def views(self, drawn: Drawn, late: bool) -> dict[str, list[Tensor]]:
        """Main view, then both augmented ones without the weak transform; static, by the row of the signal store."""
        raw, rows = drawn.x_l, self.labelled.rows[found_in(drawn.x_l, self.labelled)]
        if late:
            raw, rows = torch.cat([raw, drawn.x_u]), torch.cat([rows, self.pool.rows[drawn.position_u]])
        x = standardised(raw)
        main, transform, leads = weak(x), torch.fft.rfft(x), x.shape[1]
        pooled = (x[..., 0::2] + x[..., 1::2]).repeat_interleave(2, dim=2) / 2
        factors = 1 + WARP_STD * torch.special.ndtri(hashed(self.setting.seed, rows, 1, leads, 6))
        low = torch.where(torch.arange(transform.shape[2]) < 0.4 * x.shape[2], transform, 0)
        spectra = amplitude_and_phase(transform)
        dropped = hashed(self.setting.seed, rows, 2, 2 * leads, spectra.shape[2]) < SHARE
        dropped[..., 0] = False
        return {
            "time": [main, pooled, warp(x, factors)],
            "freq": [
                amplitude_and_phase(torch.fft.rfft(main)),
                amplitude_and_phase(low),
                torch.where(dropped, spectra.roll(1, dims=2), spectra),
            ],
        }

    def iterate(self, n: int, drawn: Drawn) -> Expected:
        late = n >= WARM_UP
        inputs = self.views(drawn, late)
        terms: dict[str, Tensor] = {}
        if late:
            for name in NAMES:
                _, first = self.heads(name, inputs[name][1], f"{name}_first")
                _, second = self.heads(name, inputs[name][2], f"{name}_second")
                terms[f"simclr.{name}"] = info_nce(first, second)
            self.descend(terms["simclr.time"] + terms["simclr.freq"])
        z: dict[str, list[Tensor]] = {}
        v = {}
        for name in NAMES:
            main, v[name] = self.heads(name, inputs[name][0], f"{name}_main")
            z[name] = [main, *(self.network(name)(x) for x in inputs[name][1:])]
        nothing = torch.zeros(BATCH, dtype=torch.int64)
        by = self.pseudo_labels(v, drawn.y_l) if late else dict.fromkeys(NAMES, (nothing, nothing.bool()))
        total = torch.zeros(())
        for name in NAMES:
            labelled = cross_entropy(z[name][0][:BATCH], drawn.y_l).mean()
            part = {
                "supervised": self.shared_mean(z[name][0], drawn.y_l, *by[OTHER[name]]) if late else labelled,
                "augmented": sum(cross_entropy(view[:BATCH], drawn.y_l).mean() for view in z[name][1:]),
                "contrast": supcon(v[name][:BATCH], drawn.y_l, 50.0),
                "complementarity": complementarity(z[name][0], z[OTHER[name]][0]),
            }
            weights = (1.0, 0.5 if late else n / WARM_UP, 0.05, 1.0)
            total = total + sum(weight * value for weight, value in zip(weights, part.values(), strict=True))
            terms |= {f"{term}.{name}": value for term, value in part.items()}
        self.descend(total)
        both_steps = total + (terms["simclr.time"] + terms["simclr.freq"] if late else 0.0)
        return Expected(both_steps, terms, by["freq"][1], by["freq"][0])


@pytest.mark.usefixtures("unit_features")
def test_paper(tagged: Tagged, monkeypatch: pytest.MonkeyPatch) -> None:
    cutoff = 0.95
    seed = 10  # rounding reaches 8e-9; biases before a normalisation have no gradient but noise, which Adam enlarges
    switches = {"warm_up": 21_500, "simclr_temperature": TAU, "warp_std": WARP_STD, "bin_dropout": SHARE}
    training = tagged(
        "complematch", "paper", ITERATIONS, EVERY, seed=seed, learning_rate=0.05, switches=switches,
        hyper=SMALL | {"cutoff": cutoff},
    )  # fmt: skip
    replace_everywhere(monkeypatch, views.hashed_uniform, hashed)
    replace_everywhere(monkeypatch, views.time_warp, warp)
    oracle = CompleMatchOracle(training, cutoff)
    # A bias before a batch norm has no gradient but rounding, which Adam magnifies; how much depends on the threads.
    accepted = taken(follow(training, oracle, relative=1e-6))
    assert sum(accepted[: WARM_UP + QUEUE - 1]) == 0 < sum(accepted) < BATCH * (ITERATIONS - WARM_UP - QUEUE + 1)
    assert training.method.reported_branch() == NAMES[int(oracle.branch)]
