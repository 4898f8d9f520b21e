"""TS-TFC and CompleMatch as published: supervised, and one method under two names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from safeecgmatch.engine.method import method_class
from safeecgmatch.engine.views import spectrum
from safeecgmatch.methods.tstfc.release import BRANCHES, make_bank
from tests.methods.harness import POOL, all_losses, assert_same, one_batch, run_to, section, toy_training, weights
from tests.methods.vector_network import ToyNetwork
from tests.vectors import load_vector

ACTIVATED = {"warmup_counts": "iterations", "warm_up": 1}


def test_prediction_is_the_mean_of_the_logits() -> None:
    vector = load_vector("tstfc_release_predict")
    x = torch.tensor(vector["x"])
    method = toy_training("tstfc", "release").method
    method.backbones = torch.nn.ModuleDict({name: ToyNetwork(vector["state"][f"backbone_{name}"]) for name in BRANCHES})
    outputs = method.outputs(x)
    predictions = method.predict(outputs)
    expected = {
        "time": torch.tensor(vector["logits_time"]).softmax(dim=1),
        "freq": torch.tensor(vector["logits_freq"]).softmax(dim=1),
        "mean": torch.tensor(vector["probs_for_ECE_ACE_SCE"]),
    }
    for name, probabilities in expected.items():
        torch.testing.assert_close(predictions[name].log_probs.exp(), probabilities, atol=2e-5, rtol=1e-4)
    assert method.reported_branch() == "mean"


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


def test_no_unlabelled_term_in_any_of_50_epochs() -> None:
    """The whole pool may be NaN: neither losses nor weights ever notice."""
    clean, broken = (toy_training("tstfc", "release", iterations=50, epoch=1) for _ in range(2))
    assert clean.setting.epoch == 1
    for epoch in range(50):
        method = broken.method
        method.train()
        method.before_step(epoch)
        batch = one_batch(broken)
        spoilt = replace(batch, x_u=torch.full_like(batch.x_u, torch.nan))
        broken.optimizer.zero_grad()
        for losses in method.losses(spoilt, epoch):
            assert not any(term.startswith("cross") for term in losses.terms)
            assert losses.accepted is None or not losses.accepted.any()
            losses.total.backward()
        broken.optimizer.step()
        clean.iterate()
        assert not method.banks
    assert_same(weights(clean), weights(broken))


def test_the_warm_up_would_end_in_epoch_501() -> None:
    method: Any = toy_training("tstfc", "release", iterations=50, epoch=2).method
    assert not method.past_warm_up(999) and method.past_warm_up(1_000)


def test_counting_iterations_reaches_the_propagation() -> None:
    training = toy_training("tstfc", "release", iterations=50, epoch=5, switches=ACTIVATED)
    run_to(training, 5)
    method: Any = training.method
    assert not method.banks
    training.iterate()
    targets, mask = method.banks["time"]
    assert targets.shape == (POOL, 3) and mask.shape == (POOL,)
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(POOL))
    time, freq = all_losses(training, 6)
    assert "cross.time" in time.terms and "cross.freq" in freq.terms
    assert time.accepted is not None and freq.accepted is None


def test_cross_loss_takes_the_other_branchs_targets() -> None:
    training = toy_training("tstfc", "release", switches=ACTIVATED)
    method: Any = training.method
    accepted, rejected = torch.ones(POOL, dtype=torch.bool), torch.zeros(POOL, dtype=torch.bool)
    certain = torch.eye(3)[torch.arange(POOL) % 3]
    method.banks = {"time": (certain, rejected), "freq": (certain, accepted)}
    time, freq = all_losses(training, 6)
    assert time.terms["cross.time"] > 0 and freq.terms["cross.freq"] == 0
    assert time.accepted is not None and time.accepted.all()


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


def test_complematch_gives_the_same_bytes() -> None:
    first, second = (toy_training(name, "release") for name in ("tstfc", "complematch"))
    for training in (first, second):
        run_to(training, 6)
    assert_same(weights(first), weights(second))
