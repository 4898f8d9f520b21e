"""The loop: stopping, divergence, resume, what it stores; selection and monitoring are in tests/methods/oracle.py."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from safeecgmatch.cells import Cell
from safeecgmatch.engine.checkpoint import Checkpoint
from safeecgmatch.engine.contract import Losses
from safeecgmatch.engine.fingerprint import resolve
from safeecgmatch.engine.loop import Diverged, Training
from safeecgmatch.engine.monitor import Monitor, warnings_of
from safeecgmatch.files import read_json
from safeecgmatch.launching.outputs import history_csv, warnings_in, write_outputs
from safeecgmatch.launching.train_cell import Cost, Session, Stopped, restored
from tests.methods.harness import demo_params, make_training, phantom_store, split_data

SHORT = {"iterations": 6, "epoch": 2, "batch": 8}


def test_a_snapshot_does_not_change_with_the_network():
    training, _, _ = make_training("supervised", **SHORT)
    training.evaluate()
    before = training.best.weights["network.fc.weight"].clone()
    training.iterate()
    assert torch.equal(training.best.weights["network.fc.weight"], before)


@pytest.mark.parametrize("stops", [True, False])
def test_stopping_at_validation_accuracy_one(monkeypatch, stops):
    training, _, _ = make_training(
        "supervised", methods={"supervised": {"switches": {"paper": {"stop_at_val_1": stops}}}}, **SHORT
    )
    labels = training.validation.labels

    def perfect(outputs):
        from safeecgmatch.engine.method import Prediction

        return {"main": Prediction(torch.nn.functional.one_hot(labels, 3).float())}

    monkeypatch.setattr(training.method, "predict", perfect)
    asked = []
    monkeypatch.setattr(training.method, "competes", lambda iteration: asked.append(iteration) or True)
    training.run(lambda _: None, lambda _: None)
    if not stops:
        assert asked == [2, 4, 6] and training.best is not None and training.best.iteration == 2
        return
    assert training.n == 2 and training.best is None, "the published code stops before testing that epoch"
    resumed, _, _ = make_training("supervised", **SHORT)
    resumed.load(training.state())
    assert resumed.finished, "a run that has stopped does not go on after a restart"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_any_loss_that_is_not_finite_is_a_divergence(value):
    monitor = Monitor()
    for total, diverged in ((1.0, False), (value, True), (1.0, True)):
        monitor.add(Losses(torch.tensor(total), {}), torch.empty(0), num_classes=3)
        assert monitor.diverged() == diverged


def test_history_has_one_row_per_evaluation_and_empty_fields():
    training, _, _ = make_training("fixmatch", **SHORT)
    training.run(lambda _: None, lambda _: None)
    lines = history_csv(training.history).splitlines()
    header = lines[0].split(",")
    assert header[:3] == ["iteration", "val_accuracy", "competes"]
    assert [line.split(",")[0] for line in lines[1:]] == ["2", "4", "6"]
    assert lines[1].split(",")[header.index("pseudo_accuracy")] == ""


def diverge(training: Training) -> None:
    with torch.no_grad():
        training.method.network.fc.bias.fill_(math.nan)


def test_a_loss_that_is_not_finite_never_overwrites_the_checkpoint(tmp_path):
    training, _, _ = make_training("supervised", **SHORT)
    session = Session(training, Checkpoint(tmp_path, "abc"), 1, Cost())
    training.iterate()
    session.save()
    diverge(training)
    training.iterate()
    session.save()
    state, _ = Checkpoint(tmp_path, "abc").load()
    assert state is not None and state["training"]["n"] == 1
    assert torch.isfinite(state["training"]["method"]["network.fc.bias"]).all()


def test_a_diverged_cell_is_a_result_with_its_reason(tmp_path):
    training, sets, inputs = make_training("supervised", **SHORT)
    for _ in range(2):
        training.iterate()
    training.evaluate()
    diverge(training)
    with pytest.raises(Diverged) as reason:
        training.run(lambda _: None, lambda _: None)
    assert str(reason.value) == "The loss stopped being finite between iterations 3 and 4."
    assert write_outputs(tmp_path / "cell", training, sets, {"x": 1}, inputs, False, str(reason.value)) is None
    assert {file.name for file in (tmp_path / "cell").iterdir()} == {"history.csv", "config.yaml", "summary.json"}
    assert json.loads((tmp_path / "cell" / "summary.json").read_text())["diverged"] == str(reason.value)
    assert warnings_in(tmp_path / "cell") == [str(reason.value)]
    assert [row["iteration"] for row in training.history] == [2]


def row(iteration: int, **values: float) -> dict[str, float]:
    return {"iteration": iteration, "val_accuracy": 0.5} | {name.replace("_at_", "."): v for name, v in values.items()}


def test_warnings_name_what_was_idle_and_what_sits_at_its_bound():
    busy = [row(2, mask_rate=0.0), row(4, mask_rate=0.1)]
    idle = [row(2, mask_rate=0.0, mask_rate_at_freq=0.0), row(4, mask_rate=0.0, mask_rate_at_freq=0.2)]
    assert warnings_of(busy, 2) == []
    assert warnings_of([row(2)], 2) == [], "a method without pseudo-labels accepts none"
    assert warnings_of(idle, 2) == ["No unlabelled record was accepted in the whole run (mask_rate is 0)."]
    hot = [row(2, temperature_at_a=4.99, temperature_at_b=0.2), row(4, temperature_at_a=4.9, temperature_at_b=0.21)]
    assert warnings_of(hot, 4) == []
    assert warnings_of(hot, 2) == [
        "temperature.a is 4.99 at the chosen iteration 2, the end of its range [0.2, 5].",
        "temperature.b is 0.2 at the chosen iteration 2, the end of its range [0.2, 5].",
    ]


def test_warnings_are_a_column_of_the_history():
    training, _, _ = make_training("fixmatch", **SHORT)  # accepts nothing within six iterations
    training.run(lambda _: None, lambda _: None)
    assert [row.get("warnings") for row in training.history] == [None, None, 1]


@pytest.mark.parametrize("name", ["supervised", "fixmatch"])
def test_stopped_and_resumed_gives_the_same_bytes(tmp_path, capsys, name):
    options = SHORT | {"iterations": 8, "epoch": 4}
    whole, sets, inputs = make_training(name, **options)
    whole.run(lambda _: None, lambda _: None)
    config = {"x": 1}
    write_outputs(tmp_path / "whole", whole, sets, config, inputs, generated=False)

    checkpoint = Checkpoint(tmp_path / "scratch", "abc")
    resolved = resolve(
        demo_params(**options), Cell("ptbxl", name, 60, 1), split_data(phantom_store("ptbxl"), "ptbxl", 60, 1)
    )
    capsys.readouterr()  # of making the phantom
    for stop_after in (2, 5, 7):  # before, between and after evaluations
        training, _, before = restored(resolved, inputs, checkpoint)
        session = Session(training, checkpoint, 3, before)

        def show(done, session=session, stop_after=stop_after):
            if done.n == stop_after:
                session.signals.append(15)

        with pytest.raises(Stopped) as stop:
            session.run(show, lambda _: None)
        assert stop.value.status == 143
    training, sets, before = restored(resolved, inputs, checkpoint)
    assert capsys.readouterr().err == "" and training.n == 7 and before.wall > 0
    Session(training, checkpoint, 3, before).run(lambda _: None, lambda _: None)
    write_outputs(tmp_path / "resumed", training, sets, config, inputs, generated=False)
    files = sorted(file.name for file in (tmp_path / "whole").iterdir())
    assert "trajectory.npz" in files and files == sorted(file.name for file in (tmp_path / "resumed").iterdir())
    for file in files:
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "resumed" / file).read_bytes(), file


def test_predictions_hold_what_evaluation_needs(tmp_path):
    training, sets, inputs = make_training("supervised", **SHORT)
    training.run(lambda _: None, lambda _: None)
    write_outputs(tmp_path / "cell", training, sets, {}, inputs, generated=False)
    with np.load(tmp_path / "cell" / "predictions.npz", allow_pickle=False) as stored:
        assert str(stored["branch"]) == "main"
        for split in ("validation", "test", "open_test"):
            n = len(getattr(inputs.split, split))
            assert stored[f"{split}.log_probs.main"].shape == (n, 3)
            assert stored[f"{split}.class_logits.main"].dtype == np.float32
            assert np.allclose(np.exp(stored[f"{split}.log_probs.main"]).sum(axis=1), 1, atol=1e-5)
            expected = inputs.store.records[getattr(inputs.split, split)]
            assert (stored[f"{split}.record"] == expected).all()
        chosen = training.chosen()
        predicted = stored["validation.log_probs.main"].argmax(axis=1)
        assert (predicted == stored["validation.label"]).mean() == pytest.approx(chosen.accuracy)
        confidence = np.exp(stored["validation.log_probs.main"].astype(np.float64)).astype(np.float32).max(axis=1)
    summary = read_json(tmp_path / "cell" / "summary.json")
    assert summary["unseen_score"] == "1 - max probability" and summary["generated_ecgs"] is False
    assert (1 - confidence.astype(np.float64) <= summary["accept_threshold"]).mean() >= summary["accept_share"] == 0.95
