"""The training loop, the same for every method: draw, step, evaluate, keep the best, checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from safeecgmatch.engine import device as devices
from safeecgmatch.engine.contract import Batch, Evaluation
from safeecgmatch.engine.generators import Generators
from safeecgmatch.engine.method import Method
from safeecgmatch.engine.monitor import Monitor, accepted_nothing, temperatures_at_bound
from safeecgmatch.engine.sampling import Stream, make_stream
from safeecgmatch.engine.signals import SignalSet
from safeecgmatch.engine.trajectory import Trajectory

Row = dict[str, Any]


class Diverged(Exception):
    """The loss is not finite: a result, of which the message says when it came about."""


@dataclass(frozen=True)
class Best:
    """The weights that will be tested, and where they come from."""

    iteration: int
    accuracy: float
    weights: dict[str, Tensor]


def is_better(accuracy: float, best: Best | None) -> bool:
    """Selection by validation accuracy: strictly better, so the earliest wins a tie."""
    return best is None or accuracy > best.accuracy


class Training:
    """One cell in training: everything here is in its checkpoint, so it can stop and go on at any iteration."""

    def __init__(
        self,
        method: Method,
        labelled: SignalSet,
        pool: SignalSet,
        validation: SignalSet,
        open_test: SignalSet,
        rng: Generators,
        amp: str,
    ) -> None:
        self.method, self.labelled, self.pool, self.rng = method, labelled, pool, rng
        self.validation, self.open_test = validation, open_test.without_labels()
        self.setting, self.amp, self.device = method.setting, amp, rng.device
        order, epoch = method.switches.batch_order, method.epoch()
        self.labelled_stream: Stream = make_stream(
            order, len(labelled), self.setting.labelled_batch, epoch, rng.on_cpu("labelled order")
        )
        self.pool_stream: Stream = make_stream(
            order, len(pool), max(self.setting.unlabelled_batch, 1), epoch, rng.on_cpu("pool order")
        )
        self.optimizer = devices.adam(list(method.parameters()), self.setting.learning_rate)
        method.optimizer = self.optimizer
        self.monitor = Monitor()
        self.n = 0  # iterations made
        self.history: list[Row] = []
        self.trajectory = Trajectory()
        self.best: Best | None = None
        self.early: Best | None = None  # the best of the phases that do not compete
        self.stopped = False

    @property
    def finished(self) -> bool:
        return self.stopped or self.n >= self.setting.iterations

    def run(self, after_iteration: Callable[[Training], None], after_evaluation: Callable[[Row], None]) -> None:
        """Train to the end of the budget from wherever it is."""
        while not self.finished:
            self.iterate()
            if self.n % self.setting.epoch == 0:
                after_evaluation(self.evaluate())
            after_iteration(self)

    def iterate(self) -> None:
        method = self.method
        method.train()
        method.before_step(self.n)
        batch, hidden = self.draw()
        self.optimizer.zero_grad()
        with devices.autocast(self.device, self.amp):
            parts = method.losses(batch, self.n)
            for losses in parts:
                losses.total.backward()
                truth = hidden if losses.position is None else self.hidden_labels(losses.position)
                self.monitor.add(losses, truth, self.setting.num_classes)
                if losses.step:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
        self.optimizer.step()
        with torch.no_grad():
            method.after_step(self.n)
        self.monitor.iterations += 1
        self.n += 1

    def draw(self) -> tuple[Batch, Tensor]:
        """The next records, and the hidden labels of the unlabelled ones for the monitor."""
        positions = self.labelled_stream.next()
        if self.setting.unlabelled_batch:
            position_u = self.pool_stream.next()
            x_u = self.pool.batch(position_u)
        else:
            position_u, x_u = torch.empty(0, dtype=torch.int64), torch.empty(0, device=self.device)
        assert self.labelled.labels is not None
        batch = Batch(
            x_l=self.labelled.batch(positions),
            y_l=self.labelled.labels[positions],
            x_u=x_u,
            position_u=position_u.to(self.device),
            record_l=self.labelled.rows[positions].to(self.device),
            record_u=self.pool.rows[position_u].to(self.device),
        )
        return batch, self.hidden_labels(position_u)

    def hidden_labels(self, positions: Tensor) -> Tensor:
        """Of pool records, for the monitor alone."""
        assert self.pool.labels is not None
        return self.pool.labels[positions]

    @torch.no_grad()
    def evaluate(self) -> Row:
        """Validation accuracy of the branch that the method reports; the best weights are kept, and the trajectory."""
        if self.monitor.diverged():
            raise Diverged(f"The loss stopped being finite {self.monitor.interval(self.n)}.")
        method, labels = self.method, self.validation.labels
        assert labels is not None
        evaluation = Evaluation(self.n, method.outputs_on(self.validation), labels)
        method.after_outputs(evaluation)
        sets = {
            "validation": method.predict(evaluation.outputs),
            "open_test": method.predict(method.outputs_on(self.open_test)),
        }
        predicted = sets["validation"][method.reported_branch()].log_probs.argmax(dim=1)
        accuracy = (predicted == labels).double().mean().item()
        competes = method.competes(self.n)
        self.trajectory.add(self.n, method.reported_branch(), competes, sets, method.monitors())
        self.stopped = method.switches.stop_at_val_1 and accuracy == 1.0
        if not self.stopped:
            self._select(accuracy, competes)
        row: Row = {"iteration": self.n, "val_accuracy": accuracy, "competes": int(competes)}
        row |= self.monitor.summary() | method.monitors()
        self.monitor.clear()
        self.history.append(row)
        warnings = len(temperatures_at_bound(row)) + (len(accepted_nothing(self.history)) if self.finished else 0)
        row |= {"warnings": warnings} if warnings else {}
        method.after_evaluation(replace(evaluation, accuracy=accuracy))
        return row

    def _select(self, accuracy: float, competes: bool) -> None:
        if not competes:
            if is_better(accuracy, self.early):
                self.early = self._snapshot(accuracy)
        elif is_better(accuracy, self.best) and (
            not self.method.must_beat_early_phases() or is_better(accuracy, self.early)
        ):
            self.best = self._snapshot(accuracy)

    def _snapshot(self, accuracy: float) -> Best:
        weights = {name: value.detach().clone() for name, value in self.method.state_dict().items()}
        return Best(self.n, accuracy, weights)

    def chosen(self) -> Best:
        """The best weights; those of an early phase, or the last ones, where nothing ever competed."""
        return self.best or self.early or self._snapshot(float("nan"))

    def state(self) -> dict[str, Any]:
        def plain(best: Best | None) -> dict[str, Any] | None:
            return None if best is None else dict(vars(best))

        return {
            "n": self.n,
            "method": self.method.state_dict(),
            "memory": self.method.memory(),
            "optimizer": self.optimizer.state_dict(),
            "generators": self.rng.state(),
            "generator_devices": self.rng.devices(),
            "labelled_stream": self.labelled_stream.state(),
            "pool_stream": self.pool_stream.state(),
            "monitor": self.monitor.state(),
            "history": self.history,
            "trajectory": self.trajectory.state(),
            "best": plain(self.best),
            "early": plain(self.early),
            "stopped": self.stopped,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.n = state["n"]
        self.method.load_state_dict(state["method"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.method.load_memory(state["memory"])
        self.rng.load(state["generators"], state["generator_devices"])
        self.labelled_stream.load(state["labelled_stream"])
        self.pool_stream.load(state["pool_stream"])
        self.monitor.load(state["monitor"])
        self.history = list(state["history"])
        self.trajectory.load(state["trajectory"])
        self.best = None if state["best"] is None else Best(**state["best"])
        self.early = None if state["early"] is None else Best(**state["early"])
        self.stopped = state["stopped"]
