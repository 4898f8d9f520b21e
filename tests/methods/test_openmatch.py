from __future__ import annotations

import pytest
import torch

from safeecgmatch.engine.loop import Training
from safeecgmatch.engine.sampling import fixed_order
from safeecgmatch.methods.openmatch.method import OpenMatch
from safeecgmatch.methods.openmatch.step import looks_inlying, step
from tests.methods.parts.test_calibration import GOLDEN, RELATIVE, golden_inputs
from tests.methods.toy import POOL, hyper_of, switches_of, toy_training


def opened(training: Training) -> OpenMatch:
    assert isinstance(training.method, OpenMatch)
    return training.method


def test_step_is_the_weighted_sum_of_golden_terms() -> None:
    g = golden_inputs()
    hyper = hyper_of("openmatch")
    result = step(g["Z"], g["O1"], g["y"], g["O1"], g["O2"], hyper)
    wanted = {
        "supervised": GOLDEN["L_cls"],
        "ova": GOLDEN["L_ood"],
        "entropy": GOLDEN["L_em(O1,O2)"],
        "socr": GOLDEN["L_socr(O1,O2)"],
    }
    assert {name: term.item() for name, term in result.terms.items()} == pytest.approx(wanted, rel=RELATIVE)
    total = wanted["supervised"] + wanted["ova"] + 0.1 * wanted["entropy"] + 0.5 * wanted["socr"]
    assert result.total.item() == pytest.approx(total, rel=RELATIVE)


def test_the_pair_of_the_predicted_class_decides_and_a_tie_rejects() -> None:
    z = torch.tensor([[2.0, 0, 0], [0, 2.0, 0], [0, 0, 2.0]])
    o = torch.tensor([[0.0, 9, 0, 1, 0, 0], [0.0, 1, 0, 9, 0, 9], [0.0, 0, 1, 0, 0, 1]])
    assert looks_inlying(z, o).tolist() == [True, False, False]


@pytest.mark.parametrize("protocol", ["paper", "release"])
def test_before_the_start_there_is_no_selection_and_no_pseudo_label_loss(protocol: str) -> None:
    training = toy_training("openmatch", protocol, iterations=500, epoch=10)
    start = opened(training).start
    assert start == {"paper": 5, "release": 40}[protocol]
    with torch.no_grad():
        opened(training).ova.weight.zero_()  # every pair is a tie
    for _ in range(5):
        training.iterate()
    row = training.monitor.summary()
    assert row["loss.fix"] == 0.0 and row["mask_rate"] == 0.0
    assert opened(training).selected.tolist() == list(range(POOL))


def test_selection_keeps_the_old_set_where_nobody_passes() -> None:
    method = opened(toy_training("openmatch", "paper", pool=300))  # three batches of the pass
    method.selected = torch.tensor([3, 5])
    with torch.no_grad():
        method.ova.weight.zero_()
    method.select()
    assert method.selected.tolist() == [3, 5]
    with torch.no_grad():
        method.ova.weight[3:] = 1.0  # features are not negative, so every pair leans to "inlier"
    method.select()
    assert method.selected.tolist() == list(range(300)) and method.training


def test_records_are_drawn_from_the_selection_alone_and_monitored_as_such() -> None:
    training = toy_training("openmatch", "paper")
    method = opened(training)
    training.iterate()
    method.select = lambda: None  # type: ignore[method-assign]
    unseen = [position for position in range(POOL) if position % 4 == 3]
    method.selected = torch.tensor(unseen)
    method.stream = method.new_stream()
    training.monitor.clear()
    training.iterate()
    row = training.monitor.summary()
    assert row["mask_rate"] == 1.0 and row["pseudo_ood_share"] == 1.0  # no threshold under `paper`


def test_release_order_depends_on_how_many_are_selected_only() -> None:
    orders = []
    for seed in (1, 2):
        method = opened(toy_training("openmatch", "release", seed=seed, iterations=500))
        method.selected = torch.arange(0, 40, 2)
        method.stream = method.new_stream()
        orders.append(method.selected[method.stream.next()].tolist())
    assert orders[0] == orders[1] == (2 * fixed_order(20, 80)[:8]).tolist()


def test_a_checkpoint_holds_the_selection_and_the_place_in_it() -> None:
    method, other = (opened(toy_training("openmatch", "release")) for _ in range(2))
    method.selected = torch.tensor([3, 5, 8, 9, 11])
    method.stream = method.new_stream()
    method.stream.next()
    other.load_memory(method.memory())
    drawn = [one.selected[one.stream.next()].tolist() for one in (method, other)]
    assert drawn[0] == drawn[1] and set(drawn[0]) == {3, 5, 8, 9, 11}


def test_thresholds() -> None:
    assert [switches_of("openmatch", protocol).threshold for protocol in ("paper", "release")] == [0.0, 0.95]


def test_threshold_of_the_release_is_strict_and_an_empty_mask_gives_zero() -> None:
    training = toy_training("openmatch", "release", iterations=100, epoch=2)
    for _ in range(10):
        training.iterate()
    row = training.monitor.summary()  # unit-norm features: nobody reaches 0.95 so early
    assert opened(training).start == 8 and row["loss.fix"] == 0.0 and row["mask_rate"] == 0.0


def test_forward_b_moves_the_batch_statistics_a_second_time() -> None:
    training = toy_training("openmatch", "release", iterations=100, epoch=2)
    counts = []
    for _ in range(10):
        training.iterate()
        counts.append(int(opened(training).network.stem_bn.num_batches_tracked))
    assert counts == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12]


def test_unseen_score_is_the_outlier_probability_of_the_predicted_class() -> None:
    method = opened(toy_training("openmatch", "paper"))
    outputs = method.validate_now(0).outputs
    z, o = outputs["class_logits.main"], outputs["ova_logits.main"]
    rows, k = torch.arange(len(z)), z.argmax(dim=1)
    wanted = torch.sigmoid(o[rows, k] - o[rows, 3 + k])
    torch.testing.assert_close(method.predict(outputs)["main"].ood_score, wanted)
