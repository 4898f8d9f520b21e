"""SCOMatch: vectors, the adaptive threshold's clock, and whole iterations by the specification."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from safeecgmatch.engine.loop import Row, Training
from safeecgmatch.methods.scomatch.state import State, adaptive_ood_threshold
from safeecgmatch.methods.scomatch.step import Logits, step
from tests.methods.harness import hyper_of, toy_training
from tests.methods.oracle import (
    Drawn,
    Expected,
    Oracle,
    Said,
    Tagged,
    cross_entropy,
    first_drawn,
    follow,
    strong,
    tagged_sets,
    weak,
)
from tests.vectors import EXACT, double, load_vector

VECTOR = load_vector("scomatch_train_step")


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


def thresholds(training: Training, moments: list[int]) -> list[float]:
    """The threshold before each of the iterations `moments`, with tallies that would give 0.855 at an update."""
    method, values = training.method, []
    for n in range(max(moments) + 1):
        method.state = State((), torch.empty(0), torch.tensor([100, 0, 0, 90]), method.state.tau_ood)
        method.before_step(n)
        if n in moments:
            values.append(round(method.state.tau_ood.item(), 6))
    return values


@pytest.mark.parametrize(
    ("protocol", "usual", "renewed"),
    [
        ("paper", [0, 464, 695], [696, 1000, 1001]),  # counts all iterations and is never reset
        ("release", [232, 3928, 4000, 4231, 5000, 5231], [4232, 4999, 5232]),  # starts anew in each epoch
    ],
)
def test_threshold_clock(protocol: str, usual: list[int], renewed: list[int]) -> None:
    training = toy_training("scomatch", protocol, iterations=50_000, epoch=1000, pool=14_850)
    wanted = dict.fromkeys(usual, 0.95) | dict.fromkeys(renewed, 0.855)
    assert thresholds(training, list(wanted)) == [wanted[n] for n in sorted(wanted)]


def test_a_small_pool_has_a_threshold_clock_too() -> None:
    """U = max(1, pool / 64); an epoch of the published code lasts at least U + 1 iterations."""
    training = toy_training("scomatch", "release", 20, 1, pool=8, switches={"start": 0})
    assert thresholds(training, list(range(6))) == [0.95, 0.855] * 3


def test_head() -> None:
    head = toy_training("scomatch", "paper").method.network.fc
    assert head.weight.std().item() == pytest.approx(0.02, rel=0.5) and head.bias is None


ITERATIONS, EVERY, OOD = 48, 6, 3
BATCH, POOL, MEMORY = 10, 200, 13
EPOCH, PERIOD = 20, 3  # the pool in batches; the pool over 64
START = 12  # when the memory already holds a batch, and a moment of an update
CUT, LOWEST = 0.55, 0.3


class SCOMatchOracle(Oracle):
    def __init__(self, training: Training, protocol: str, cut: float, start: int, plus_on_weak: bool) -> None:
        super().__init__(training)
        self.paper, self.cut, self.start, self.plus_on_weak = protocol == "paper", cut, start, plus_on_weak
        self.items: list[Tensor] = []
        self.scores: list[float] = []
        self.tallies, self.tau, self.fed = torch.zeros(OOD + 1, dtype=torch.int64), cut, torch.empty(0)
        self.orders: list[list[int]] = []
        self.taus: list[float] = []
        training.method.network.register_forward_pre_hook(self.watch)

    def watch(self, network: nn.Module, inputs: tuple[Tensor]) -> None:
        """What was fed last in training: the draw from the memory is the one thing that only the method knows."""
        if network.training:
            self.fed = inputs[0].detach().clone()

    def drawn_from_memory(self) -> list[int]:
        """Positions of as many different entries as there are labelled records, once there are so many.

        Which of two entries from the same record does not matter, as long as their scores are on one side of the cut.
        """
        order: list[int] = []
        for row in self.fed[BATCH : 2 * BATCH] if len(self.items) >= BATCH else []:
            left = [j for j, item in enumerate(self.items) if torch.equal(row, item) and j not in order]
            assert left, "what is fed is no entry of the memory, or one for the second time"
            order.append(left[0])
        return order

    def renew_threshold(self, n: int) -> None:
        i = n if self.paper else n % EPOCH
        if i == 0 and not self.paper:
            self.tau = self.cut
        if n >= self.start and i > 0 and i % PERIOD == 0:
            known = int(self.tallies[:OOD].sum())
            self.tau = min(self.cut, max(LOWEST, self.cut * int(self.tallies[OOD]) / known)) if known else self.cut
            self.tallies = torch.zeros_like(self.tallies)
        self.taus.append(self.tau)

    def iterate(self, n: int, drawn: Drawn) -> Expected:
        self.renew_threshold(n)
        order = self.drawn_from_memory()
        self.orders.append(order)
        x_w, x_s = weak(drawn.x_u), strong(drawn.x_u)
        x = torch.cat(
            [weak(drawn.x_l), *(self.items[j][None] for j in order), *([x_w, x_s] * (1 if self.paper else 2))]
        )
        z_l, z_m, z_w, z_s = self.network(x)[: 3 * BATCH + len(order)].split([BATCH, len(order), BATCH, BATCH])
        p = z_w.detach().softmax(dim=1)
        confidence, pseudo = p.max(dim=1)
        known = (confidence >= self.cut) & (pseudo < OOD)
        plus = known | ((confidence >= self.tau) & (pseudo == OOD))
        terms = {
            "supervised": cross_entropy(z_l, drawn.y_l).mean(),
            "memory": torch.zeros(()),
            "plus": torch.zeros(()),
            "known": (cross_entropy(z_s[:, :OOD], z_w[:, :OOD].argmax(dim=1)) * known).sum() / BATCH,
        }
        opened = n >= self.start
        if opened and order:
            unlikely = torch.tensor([self.scores[j] < self.cut for j in order])
            terms["memory"] = (cross_entropy(z_m, torch.full((BATCH,), OOD)) * unlikely).sum() / BATCH
        if opened:
            terms["plus"] = (cross_entropy(z_s, pseudo) * plus).sum() / BATCH
            if self.plus_on_weak:
                terms["plus"] = terms["plus"] / 2 + (cross_entropy(z_w, pseudo) * plus).sum() / (2 * BATCH)
        total = terms["supervised"] + terms["memory"] + terms["plus"] + terms["known"]
        for k in pseudo[confidence > self.cut].tolist():
            self.tallies[k] += 1
        likely = p[:, :OOD].amax(dim=1)
        self.items = [*self.items, x_w[likely.argmin()]][-MEMORY:]
        self.scores = [*self.scores, float(likely.min())][-MEMORY:]
        self.descend(total)
        return Expected(total, terms, plus if opened else known, pseudo)

    def predict(self, x: Tensor) -> Said:
        z = self.network(x)
        return {"main": (z[:, :OOD].log_softmax(dim=1), z.softmax(dim=1)[:, OOD])}

    def evaluate(self, n: int) -> Row:
        return super().evaluate(n) | {"tau_ood": self.tau}

    def memory(self) -> dict[str, Any]:
        tau = torch.tensor(self.tau, dtype=torch.float64)
        return {"items": self.items, "scores": torch.tensor(self.scores), "tallies": self.tallies, "tau_ood": tau}


def scomatch(tagged: Tagged, protocol: str, cut: float = CUT, start: int = START, **hyper: Any) -> Training:
    """A head that is sure of some records, unseen class included."""
    training = tagged(
        "scomatch", protocol, ITERATIONS, EVERY, warm_up=start, learning_rate=0.01, batch=BATCH,
        sets=tagged_sets(POOL, wave=0.0),
        hyper={"threshold": cut, "lowest_ood_threshold": LOWEST, "memory": MEMORY} | hyper,
        switches={} if protocol == "paper" else {"start": "2 epochs"},
    )  # fmt: skip
    generator, network = torch.Generator().manual_seed(21), training.method.network
    nn.init.normal_(network.encoder.weight, std=0.5, generator=generator)
    nn.init.normal_(network.fc.weight, std=0.8, generator=generator)
    return training


@pytest.mark.parametrize(("protocol", "plus_on_weak"), [("paper", False), ("paper", True), ("release", False)])
def test_scomatch(tagged: Tagged, protocol: str, plus_on_weak: bool) -> None:
    training = scomatch(tagged, protocol, plus_on_weak=plus_on_weak)
    oracle = SCOMatchOracle(training, protocol, CUT, START, plus_on_weak)
    done = follow(training, oracle)
    assert [bool(order) for order in oracle.orders] == [n >= BATCH for n in range(ITERATIONS)]
    assert oracle.orders[BATCH] != sorted(oracle.orders[BATCH])
    assert len({tuple(order) for order in oracle.orders[BATCH:]}) == ITERATIONS - BATCH
    assert any(LOWEST < tau < CUT for tau in oracle.taus)
    pseudo = torch.cat([one.pseudo[one.accepted] for one in done])
    assert {0, 1, OOD} <= set(pseudo.tolist()) and len(pseudo) < BATCH * ITERATIONS


@pytest.mark.parametrize(("what", "start"), [("known", 0), ("unseen", 0), ("score", BATCH)])
def test_values_equal_to_the_cut(tagged: Tagged, what: str, start: int) -> None:
    """They are accepted, but neither tallied nor, in the memory, trained as unseen."""
    rehearsal = scomatch(tagged, "paper")
    drawn = first_drawn(rehearsal)
    z = rehearsal.method.network(torch.cat([weak(drawn.x_l), weak(drawn.x_u), strong(drawn.x_u)]))
    p = z[BATCH : 2 * BATCH].detach().softmax(dim=1)
    confidence, pseudo = p.max(dim=1)
    values = {"known": confidence[pseudo < OOD], "unseen": confidence[pseudo == OOD], "score": p[:, :OOD].amax(dim=1)}
    cut = float(values[what].min() if what == "score" else values[what].max())
    training = scomatch(tagged, "paper", cut, start)
    oracle = SCOMatchOracle(training, "paper", cut, start, False)
    done = follow(training, oracle)
    if what != "score":
        assert bool(done[0].accepted[confidence == cut].all())
