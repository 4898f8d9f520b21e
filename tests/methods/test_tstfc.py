"""TS-TFC, faithful and as published: vectors, and whole iterations by the specification.

As published CompleMatch is the same method under another name.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from safeecgmatch.engine.loop import Row, Training
from safeecgmatch.engine.method import method_class
from safeecgmatch.engine.views import spectrum
from safeecgmatch.methods.parts.propagation import PseudoLabels
from safeecgmatch.methods.tstfc.method import step
from safeecgmatch.methods.tstfc.release import BRANCHES, make_bank
from tests.methods.harness import CLASSES, section, toy_training
from tests.methods.oracle import (
    BATCH,
    POOL,
    Drawn,
    Expected,
    Oracle,
    Probe,
    Said,
    Tagged,
    cross_entropy,
    follow,
    taken,
    weak,
)
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
            torch.testing.assert_close(tensor.grad, expected, atol=vector["atol"], rtol=vector["rtol"])


class ToyNetwork(torch.nn.Module):
    """The network of the vectors: flatten - linear - BN - tanh - unit norm - linear."""

    def __init__(self, state: dict[str, Any]) -> None:
        super().__init__()
        tensors = {name: torch.tensor(value) for name, value in state.items()}
        hidden, inputs = tensors["lin.weight"].shape
        self.lin = torch.nn.Linear(inputs, hidden)
        self.bn = torch.nn.BatchNorm1d(hidden)
        self.fc = torch.nn.Linear(hidden, len(tensors["fc.weight"]))
        self.load_state_dict(tensors)
        self.eval()

    def features(self, x: Tensor) -> Tensor:
        return F.normalize(torch.tanh(self.bn(self.lin(x.flatten(1)))), dim=1, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


def test_bank_reproduces_the_release() -> None:
    vector = load_vector("tstfc_release_pseudo_bank")
    labelled, pool = torch.tensor(vector["labelled_x"]), torch.tensor(vector["unlabelled_x"])
    labels = torch.tensor(vector["labelled_y"])
    for name in BRANCHES:
        network = ToyNetwork(vector["state"][f"backbone_{name}"])
        x = torch.cat([labelled, pool])
        features = network.features(x if name == "time" else spectrum(x)).detach()
        scores, mask = make_bank(
            features, labels, 3, vector["topk"], vector["alpha"], vector["iters"], vector["cutoff"]
        )
        places = torch.tensor(vector["unlabelled_idx"])
        expected = vector["expected"][name]
        wanted = torch.tensor(expected["pseudo_bank"])[places]
        torch.testing.assert_close(scores, wanted, atol=vector["atol"], rtol=vector["rtol"])
        assert torch.equal(mask.float(), torch.tensor(expected["mask_bank"])[places])


def test_the_warm_up_would_end_in_epoch_501() -> None:
    method = toy_training("tstfc", "release", iterations=50, epoch=2).method
    assert not method.past_warm_up(999) and method.past_warm_up(1_000)


def test_complematch_is_the_same_class_with_the_same_values() -> None:
    assert method_class("complematch.release") is method_class("tstfc.release")
    defaults = load_vector("complematch_release_identity")["defaults"]
    for name in ("tstfc", "complematch"):
        hyper, switches = section(name), vars(toy_training(name, "release").method.switches)
        assert hyper["k_time"] == defaults["knn_num_time"] and hyper["k_freq"] == defaults["knn_num_freq"]
        assert hyper["cutoff"] == defaults["pseudo_cutoff"]
        assert hyper["lambda_supcon"] == defaults["lambda_supcon_time"] == defaults["lambda_supcon_freq"]
        assert hyper["projection_dim"] == defaults["projection_dim"]
        assert hyper["projection_hidden"] == defaults["projection_hidden_dim"]
        assert switches["lambda_cross"] == defaults["lambda_cross_pseudo"]
        assert switches["alpha"] == defaults["graph_alpha"] and switches["rounds"] == defaults["graph_iters"]
        assert switches["confidence_weight"] == defaults["use_confidence_weight"]


ITERATIONS, EVERY = 15, 3
WARM_UP, QUEUE, SIGMA, ALPHA = 4, 3, 0.25, 0.99
NAMES = ("time", "freq")
OTHER = {"time": "freq", "freq": "time"}
NEIGHBOURS = {"time": 9, "freq": 6}
SMALL = {"k_time": 9, "k_freq": 6, "projection_hidden": 6, "projection_dim": 4}


def standardised(x: Tensor) -> Tensor:
    return (x - x.mean(dim=2, keepdim=True)) / x.var(dim=2, correction=0, keepdim=True).sqrt()


def amplitude_and_phase(transform: Tensor) -> Tensor:
    re, im, e = transform.real, transform.imag, 1e-6
    amplitude, phase = ((re + e) ** 2 + (im + e) ** 2).sqrt(), torch.atan2(im, re + e)
    channels = [part[:, lead] for lead in range(transform.shape[1]) for part in (amplitude, phase)]
    return torch.stack(channels, dim=1)


def supcon(v: Tensor, y: Tensor, temperature: float) -> Tensor:
    """By anchors; 0 where none has another row of its class."""
    similarity, values = v @ v.T / temperature, []
    for i in range(len(y)):
        others = [a for a in range(len(y)) if a != i]
        positives = [a for a in others if y[a] == y[i]]
        if positives:
            values.append(similarity[i, others].logsumexp(dim=0) - similarity[i, positives].mean())
    return torch.stack(values).mean() if values else torch.zeros(())


def propagated(v: Tensor, labels: Tensor, k: int) -> Tensor:
    """F = (I - alpha S)^-1 Y on the symmetrised graph of the k nearest nodes, each its own among them."""
    size = len(v)
    w = torch.tensor([[float((-0.5 * ((a - b) / SIGMA).square().mean()).exp()) for b in v] for a in v])
    near = [set(row.argsort(descending=True)[:k].tolist()) for row in w]
    w = torch.tensor(
        [[float(w[i, j]) if j in near[i] or i in near[j] else 0.0 for j in range(size)] for i in range(size)]
    )
    d = w.sum(dim=0)
    y = torch.zeros(size, CLASSES)
    for i in range(size):
        if labels[i] >= 0:
            y[i, labels[i]] = 1.0
    return torch.linalg.inv(torch.eye(size) - ALPHA * w / torch.outer(d, d).sqrt()) @ y


def chosen(scores: Tensor, labels: Tensor, cutoff: float) -> tuple[Tensor, Tensor]:
    """(pseudo-labels, accepted) of all nodes; classes that unlabelled nodes seldom get have a lower bar."""
    pseudo = scores.argmax(dim=1)
    counts = pseudo[labels < 0].bincount(minlength=CLASSES)
    beta = counts / max(1, int(counts.max()))
    return pseudo, scores.softmax(dim=1).max(dim=1).values >= (cutoff * beta / (2 - beta))[pseudo]


class TwoBranchOracle(Oracle):
    networks = ("backbones", "projections")

    def network(self, name: str) -> Probe:
        return self.backbones[name]

    def heads(self, name: str, x: Tensor, projection: str) -> tuple[Tensor, Tensor]:
        """Logits and projections of one forward."""
        features = self.network(name).features(x)
        return self.network(name).fc(features), self.projections[projection](features)

    def seen(self, name: str, x: Tensor) -> Tensor:
        raise NotImplementedError

    def predict(self, x: Tensor) -> Said:
        z = {name: self.network(name)(self.seen(name, x)) for name in NAMES}
        z["mean"] = z["time"] / 2 + z["freq"] / 2
        return {name: (value.log_softmax(dim=1), None) for name, value in z.items()}

    def accuracies(self) -> dict[str, float]:
        return {name: self.right(log_probs) for name, (log_probs, _) in self.said().items()}


class CoTrainedOracle(TwoBranchOracle):
    """With the queues of both branches: projections and labels (-1: none) of the last three batches."""

    def __init__(self, training: Training, cutoff: float) -> None:
        super().__init__(training)
        self.register_buffer("branch", torch.tensor(0))
        self.cutoff = cutoff
        self.queues: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in NAMES}
        self.reported: list[str] = []

    def seen(self, name: str, x: Tensor) -> Tensor:
        return x if name == "time" else amplitude_and_phase(torch.fft.rfft(x))

    def predict(self, x: Tensor) -> Said:
        return super().predict(standardised(x))

    def pseudo_labels(self, v: dict[str, Tensor], y_l: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """What each branch says of the unlabelled rows of this batch, which joins its queue."""
        found = {}
        labels = torch.cat([y_l, torch.full((BATCH,), -1)])
        for name in NAMES:
            queue = self.queues[name] = [*self.queues[name], (v[name].detach(), labels)][-QUEUE:]
            pseudo, accepted = torch.zeros(BATCH, dtype=torch.int64), torch.zeros(BATCH, dtype=torch.bool)
            if len(queue) == QUEUE:
                nodes, known = (torch.cat(parts) for parts in zip(*queue, strict=True))
                scores = propagated(nodes, known, NEIGHBOURS[name])
                pseudo, accepted = (part[-BATCH:] for part in chosen(scores, known, self.cutoff))
            found[name] = (pseudo, accepted)
        return found

    def shared_mean(self, z: Tensor, y_l: Tensor, pseudo: Tensor, accepted: Tensor) -> Tensor:
        rows = torch.cat([cross_entropy(z[:BATCH], y_l), cross_entropy(z[BATCH:], pseudo)[accepted]])
        return rows.sum() / (BATCH + int(accepted.sum()))

    def evaluate(self, n: int) -> Row:
        """Of the better branch; time wins a tie."""
        accuracies = self.accuracies()
        self.branch.fill_(int(accuracies["freq"] > accuracies["time"]))
        self.reported.append(NAMES[int(self.branch)] if accuracies["freq"] != accuracies["time"] else "tie")
        return {"val_accuracy": max(accuracies["freq"], accuracies["time"])}

    def memory(self) -> dict[str, Any]:
        return {
            "queues": {
                name: {"projections": [v for v, _ in queue], "labels": [labels for _, labels in queue]}
                for name, queue in self.queues.items()
            }
        }


class PaperOracle(CoTrainedOracle):
    amplitude_only = False

    def seen(self, name: str, x: Tensor) -> Tensor:
        return torch.fft.rfft(x).abs() if name == "freq" and self.amplitude_only else super().seen(name, x)

    def iterate(self, n: int, drawn: Drawn) -> Expected:
        late = n >= WARM_UP
        x = weak(standardised(torch.cat([drawn.x_l, drawn.x_u]) if late else drawn.x_l))
        z, v = {}, {}
        for name in NAMES:
            z[name], v[name] = self.heads(name, self.seen(name, x), name)
        nothing = torch.zeros(BATCH, dtype=torch.int64)
        by = self.pseudo_labels(v, drawn.y_l) if late else dict.fromkeys(NAMES, (nothing, nothing.bool()))
        terms = {}
        for name in NAMES:
            terms[f"supervised.{name}"] = (
                self.shared_mean(z[name], drawn.y_l, *by[OTHER[name]])
                if late
                else cross_entropy(z[name], drawn.y_l).mean()
            )
            terms[f"contrast.{name}"] = supcon(v[name][:BATCH], drawn.y_l, 50.0)
        total = sum((0.05 if "contrast" in term else 1.0) * value for term, value in terms.items())
        self.descend(total)
        return Expected(total, terms, by["freq"][1], by["freq"][0])


@pytest.mark.usefixtures("unit_features")
@pytest.mark.parametrize(
    ("frequency_input", "seed"), [("amplitude_phase", 1), ("amplitude_phase", 2), ("amplitude", 3)]
)
def test_paper(tagged: Tagged, frequency_input: str, seed: int) -> None:
    switches = {"warm_up": 15_000, "frequency_input": frequency_input}
    cutoff = 0.95
    training = tagged(
        "tstfc", "paper", ITERATIONS, EVERY, seed=seed, learning_rate=0.05, switches=switches,
        hyper=SMALL | {"cutoff": cutoff},
    )  # fmt: skip
    oracle = PaperOracle(training, cutoff)
    oracle.amplitude_only = frequency_input == "amplitude"
    done = follow(training, oracle, relative=1e-6)
    accepted = taken(done)
    assert sum(accepted[: WARM_UP + QUEUE - 1]) == 0 < sum(accepted) < BATCH * (ITERATIONS - WARM_UP - QUEUE + 1)
    assert training.method.reported_branch() == NAMES[int(oracle.branch)]


class ReleaseOracle(TwoBranchOracle):
    def __init__(self, training: Training, first_bank: int, cutoff: float, by_confidence: bool) -> None:
        super().__init__(training)
        self.y_all, self.x_all = training.labelled.labels, training.labelled.batch(torch.arange(len(training.labelled)))
        self.first_bank, self.cutoff, self.by_confidence = first_bank, cutoff, by_confidence
        self.banks: dict[str, tuple[Tensor, Tensor]] = {}

    def seen(self, name: str, x: Tensor) -> Tensor:
        return x if name == "time" else torch.fft.rfft(x).abs()

    @torch.no_grad()
    def make_bank(self, name: str) -> tuple[Tensor, Tensor]:
        self.eval()
        x = torch.cat([weak(self.x_all), weak(self.x_pool)])
        unit = self.network(name).features(self.seen(name, x))
        self.train()
        seeds, size = len(self.y_all), len(unit)
        start = F.one_hot(self.y_all, CLASSES).double()
        s = torch.cat([start, start.mean(dim=0).expand(POOL, CLASSES)])
        cosines = (unit @ unit.T).fill_diagonal_(-1e9)
        weights = torch.zeros(size, size)
        for i in range(size):
            near = cosines[i].argsort(descending=True)[: NEIGHBOURS[name]]
            weights[i, near] = cosines[i, near].softmax(dim=0)
        for _ in range(20):
            s = 0.9 * weights @ s
            s[:seeds] = start
            s = s / s.sum(dim=1, keepdim=True)
        return s[seeds:], s[seeds:].max(dim=1).values >= self.cutoff

    def iterate(self, n: int, drawn: Drawn) -> Expected:
        if n >= self.first_bank and n % EVERY == 0:
            self.banks = {name: self.make_bank(name) for name in NAMES}
        x = torch.cat([weak(drawn.x_l), weak(drawn.x_l, 1)])
        y, terms = torch.cat([drawn.y_l, drawn.y_l]), {}
        for name in NAMES:
            z, v = self.heads(name, self.seen(name, x), name)
            terms[f"supervised.{name}"] = cross_entropy(z, y).mean()
            terms[f"contrast.{name}"] = supcon(F.normalize(v, dim=1), y, 0.07)
            if self.banks:
                q, m = (part[drawn.position_u] for part in self.banks[OTHER[name]])
                z_u = self.network(name)(self.seen(name, weak(drawn.x_u)))
                w = m * q.max(dim=1).values if self.by_confidence else m.double()
                rows = w * -(q * z_u.log_softmax(dim=1)).sum(dim=1)
                terms[f"cross.{name}"] = rows.sum() / w.sum() if m.any() else 0 * rows.sum()
        total = sum((0.05 if "contrast" in term else 1.0) * value for term, value in terms.items())
        self.descend(total)
        q, m = self.banks.get("freq", (torch.eye(1).expand(POOL, 1), torch.zeros(POOL, dtype=torch.bool)))
        return Expected(total, terms, m[drawn.position_u], q.argmax(dim=1)[drawn.position_u])

    def evaluate(self, n: int) -> Row:
        return {"val_accuracy": self.accuracies()["mean"]}

    def memory(self) -> dict[str, Any]:
        return {"banks": {name: list(bank) for name, bank in self.banks.items()}}


NEVER = ITERATIONS
# The warm-up, whatever the budget, and the first iteration with a bank: one is made at evaluations only.
RELEASES = [
    ({}, NEVER, False),
    ({"warm_up": 1}, 3, False),  # iteration 3 is in the second epoch
    ({"warm_up": 2}, 6, True),
    ({"warm_up": 3, "warmup_counts": "iterations"}, 6, False),
]


@pytest.mark.usefixtures("unit_features")
@pytest.mark.parametrize("name", ["tstfc", "complematch"])
@pytest.mark.parametrize(("switches", "first_bank", "by_confidence"), RELEASES)
def test_release(tagged: Tagged, name: str, switches: dict[str, Any], first_bank: int, by_confidence: bool) -> None:
    cutoff = 0.7
    training = tagged(
        name, "release", ITERATIONS, EVERY, learning_rate=0.05, hyper=SMALL | {"cutoff": cutoff},
        switches=switches | {"confidence_weight": by_confidence},
    )  # fmt: skip
    oracle = ReleaseOracle(training, first_bank, cutoff, by_confidence)
    done = follow(training, oracle, relative=1e-6)
    accepted = taken(done)
    assert sum(accepted[:first_bank]) == 0 and sum(accepted) <= BATCH * (ITERATIONS - first_bank)
    assert any(accepted) == (first_bank < NEVER)
    assert not training.method.memory()["banks"] or first_bank < NEVER
    assert training.method.reported_branch() == "mean"
