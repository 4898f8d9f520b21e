"""SCOMatch (Wang et al., ECCV 2024): unseen classes as the (K+1)-th class, learnt from a memory of unlikely records.

    P = softmax(z(x_w)) over K+1, M = max P, A = arg max P, A' = arg max_{k<K} z(x_w);   t_ood adapts in [0.75, 0.95]
    L = CE(z(x_l), y) + L_mem + L_plus + L_known
    L_mem   = (1/B) sum over drawn memory entries of 1[score < 0.95] CE(z(mem), K)
    L_plus  = (1/B) sum (1[M >= 0.95, A < K] + 1[M >= t_ood, A = K]) CE(z(x_s), A)          K+1 logits
    L_known = (1/B) sum 1[M >= 0.95, A < K] CE(z(x_s)[:K], A')                              K logits

Each iteration pushes the weak view with the lowest known-class probability. L_mem and L_plus wait for `start`; memory,
tallies and L_known run from the first iteration. One forward of [x_l | memory | x_w | x_s].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from safeecgmatch.engine.contract import Batch, Losses, Outputs, Prediction
from safeecgmatch.engine.models import ResNet1D, initialise_linear_
from safeecgmatch.engine.views import strong, weak
from safeecgmatch.methods.base import Context, Hyper, Method, Switches
from safeecgmatch.methods.parts.losses import cross_entropy, masked_mean, pseudo_label_loss
from safeecgmatch.methods.scomatch.threshold import adaptive_ood_threshold

UPDATE_SHARE = 64  # the threshold is renewed once per pool size / 64 iterations


class SCOMatchHyper(Hyper):
    threshold: float
    lowest_ood_threshold: float
    memory: int  # entries
    plus_on_weak: bool  # L_plus on the weak rows too, mean over both (the original outside CIFAR-10)


class SCOMatchSwitches(Switches):
    start: int
    duplicate_views: bool
    reset_tau_each_epoch: bool


@dataclass(frozen=True)
class State:
    """Oldest memory entry first: signals as they were fed, scores as they were then; tallies since the last update."""

    items: tuple[Tensor, ...]
    scores: Tensor  # (len(items),)
    tallies: Tensor  # (K+1,) confident predictions per class
    tau_ood: Tensor  # ()


def renewed(state: State, hyper: SCOMatchHyper) -> State:
    tau_ood = adaptive_ood_threshold(state.tallies, hyper.threshold, hyper.lowest_ood_threshold)
    return replace(state, tau_ood=tau_ood, tallies=torch.zeros_like(state.tallies))


def draw(state: State, count: int, generator: Generator) -> list[int]:
    """`count` distinct memory entries in random order; none while there are fewer."""
    if len(state.items) < count:
        return []
    return torch.randperm(len(state.items), generator=generator)[:count].tolist()


class Logits(NamedTuple):
    labelled: Tensor
    memory: Tensor  # no rows where none was drawn
    weak: Tensor
    strong: Tensor


@dataclass(frozen=True)
class Step:
    """The mathematics of one iteration on plain logits; `state` is the one of the next iteration."""

    total: Tensor
    terms: dict[str, Tensor]
    plus_mask: Tensor
    known_mask: Tensor
    pseudo_plus: Tensor
    pseudo_known: Tensor
    state: State


def step(
    z: Logits, y_l: Tensor, memory_scores: Tensor, x_w: Tensor, state: State, opened: bool, hyper: SCOMatchHyper
) -> Step:
    """`memory_scores` of the drawn entries; `x_w`: what the memory keeps of a row; `opened`: L_mem and L_plus count."""
    ood = z.weak.shape[1] - 1
    p = z.weak.detach().softmax(dim=1)
    confidence, pseudo = p.max(dim=1)
    pseudo_known = z.weak.detach()[:, :ood].argmax(dim=1)
    known_mask = (confidence >= hyper.threshold) & (pseudo < ood)
    plus_mask = known_mask | ((confidence >= state.tau_ood) & (pseudo == ood))
    plus = pseudo_label_loss(z.strong, pseudo, plus_mask, "batch")
    if hyper.plus_on_weak:
        plus = (plus + pseudo_label_loss(z.weak, pseudo, plus_mask, "batch")) / 2
    terms = {
        "supervised": cross_entropy(z.labelled, y_l),
        "memory": masked_mean(-z.memory.log_softmax(dim=1)[:, ood], memory_scores < hyper.threshold, "batch"),
        "plus": plus,
        "known": pseudo_label_loss(z.strong[:, :ood], pseudo_known, known_mask, "batch"),
    }
    if not opened:
        terms |= {"memory": torch.zeros_like(plus), "plus": torch.zeros_like(plus)}
    tallied = F.one_hot(pseudo, ood + 1) * (confidence > hyper.threshold)[:, None]
    lowest, row = p[:, :ood].amax(dim=1).min(dim=0, keepdim=True)
    following = State(
        items=(*state.items, x_w.detach().index_select(0, row)[0])[-hyper.memory :],
        scores=torch.cat([state.scores, lowest])[-hyper.memory :],
        tallies=state.tallies + tallied.sum(dim=0),
        tau_ood=state.tau_ood,
    )
    return Step(torch.stack(list(terms.values())).sum(), terms, plus_mask, known_mask, pseudo, pseudo_known, following)


class SCOMatch(Method[SCOMatchHyper, SCOMatchSwitches]):
    Hyper = SCOMatchHyper
    Switches = SCOMatchSwitches

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        classes = self.setting.num_classes
        self.network = ResNet1D(self.setting.leads, classes + 1, self.setting.width)
        self.network.fc = nn.Linear(self.network.dim, classes + 1, bias=False)
        initialise_linear_(self.network)
        self.state = State(
            items=(),
            scores=torch.empty(0, device=self.rng.device),
            tallies=torch.zeros(classes + 1, dtype=torch.int64, device=self.rng.device),
            tau_ood=torch.tensor(self.hyper.threshold, dtype=torch.float64, device=self.rng.device),
        )
        self.start = self.setting.scaled(self.switches.start)
        self.period = max(1, len(self.data.pool) // UPDATE_SHARE)

    def before_step(self, n: int) -> None:
        """The adaptive threshold: in the published code the clock starts anew, at 0.95, in each epoch."""
        i = n % self.setting.epoch if self.switches.reset_tau_each_epoch else n
        if i == 0:
            self.state = replace(self.state, tau_ood=torch.full_like(self.state.tau_ood, self.hyper.threshold))
        elif n >= self.start and i % self.period == 0:
            self.state = renewed(self.state, self.hyper)

    def losses(self, batch: Batch, n: int) -> Iterator[Losses]:
        views, rate, state = self.rng("views"), self.setting.sampling_rate, self.state
        drawn = draw(state, len(batch.x_l), self.rng.on_cpu("memory"))
        x_l, x_w, x_s = weak(batch.x_l, views), weak(batch.x_u, views), strong(batch.x_u, views, rate)
        # The published code feeds the unlabelled views twice; the copies' logits are equal, so only batch
        # normalisation notices, and reading the first copy gives the same gradient.
        copies = [x_w, x_s] * (2 if self.switches.duplicate_views else 1)
        memory = [torch.stack([state.items[j] for j in drawn])] if drawn else []
        sizes = [len(x_l), len(drawn), len(x_w), len(x_s)]
        rows = self.network(torch.cat([x_l, *memory, *copies]))[: sum(sizes)]
        logits, opened = Logits(*rows.split(sizes)), n >= self.start
        result = step(logits, batch.y_l, state.scores[drawn], x_w, state, opened, self.hyper)
        self.state = result.state
        accepted = result.plus_mask if opened else result.known_mask
        yield Losses(result.total, result.terms, accepted, result.pseudo_plus)

    def outputs(self, x: Tensor) -> Outputs:
        return {"open_logits.main": self.network(x)}

    def predict(self, outputs: Outputs) -> dict[str, Prediction]:
        z = outputs["open_logits.main"]
        return {"main": Prediction(z[:, :-1].log_softmax(dim=1), z.softmax(dim=1)[:, -1])}

    def monitors(self) -> dict[str, float]:
        return {"tau_ood": float(self.state.tau_ood)}

    def memory(self) -> dict[str, Any]:
        return {**vars(self.state), "items": list(self.state.items)}

    def load_memory(self, memory: dict[str, Any]) -> None:
        device = self.rng.device
        items = tuple(item.to(device) for item in memory["items"])
        self.state = State(items, *(memory[name].to(device) for name in ("scores", "tallies", "tau_ood")))


METHOD = SCOMatch
