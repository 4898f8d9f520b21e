"""What TS-TFC and CompleMatch share: a time and a frequency branch, which `CoTrained` lets teach each other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from safeecgmatch.config import Moment, Positive, Scale, Share, Weight
from safeecgmatch.engine.contract import Evaluation, Outputs, Prediction
from safeecgmatch.engine.method import Context, Hyper, Method, S, Switches
from safeecgmatch.engine.models import ResNet1D, projection_head
from safeecgmatch.engine.views import standardise
from safeecgmatch.methods.parts.propagation import CoTraining, Propagation, better_branch

BRANCHES = CoTraining.BRANCHES
OTHER = {"time": "freq", "freq": "time"}


class TwoBranchHyper(Hyper):
    k_time: Positive
    k_freq: Positive
    cutoff: Share
    lambda_supcon: Weight
    projection_hidden: Positive
    projection_dim: Positive


class TwoBranch(Method[TwoBranchHyper, S]):
    """Backbones "time" and "freq", and projection heads on their features; nothing is shared between the branches."""

    Hyper = TwoBranchHyper

    def make_networks(self, channels_per_lead: int, heads: Sequence[str] = BRANCHES) -> None:
        """`channels_per_lead` is that of the frequency input, `heads` are the names of the projection heads."""
        setting, hyper = self.setting, self.hyper
        channels = {"time": setting.leads, "freq": channels_per_lead * setting.leads}
        self.backbones = nn.ModuleDict(
            {name: ResNet1D(channels[name], setting.num_classes, setting.width) for name in BRANCHES}
        )
        sizes = (self.backbone("time").dim, hyper.projection_hidden, hyper.projection_dim)
        self.projections = nn.ModuleDict({head: projection_head(*sizes) for head in heads})

    def backbone(self, name: str) -> ResNet1D:
        return cast(ResNet1D, self.backbones[name])

    @abstractmethod
    def branch_input(self, name: str, x: Tensor) -> Tensor:
        """The branch's view of records."""

    def outputs(self, x: Tensor) -> Outputs:
        return {f"class_logits.{name}": self.backbone(name)(self.branch_input(name, x)) for name in BRANCHES}

    def predict(self, outputs: Outputs) -> dict[str, Prediction]:
        """Both branches, and the mean of their logits."""
        logits = {name: outputs[f"class_logits.{name}"] for name in BRANCHES}
        logits["mean"] = (logits["time"] + logits["freq"]) / 2
        return {name: Prediction(value.log_softmax(dim=1)) for name, value in logits.items()}


class CoTrainedSwitches(Switches):
    warm_up: Moment
    supcon_temperature: Scale
    queue: Positive
    sigma: Scale
    alpha: Share


C = TypeVar("C", bound=CoTrainedSwitches)


class CoTrained(TwoBranch[C]):
    """Labels are propagated over each branch's projections; the branch that validates better gives the prediction."""

    branch: Tensor

    def __init__(self, context: Context[TwoBranchHyper, C]) -> None:
        super().__init__(context)
        hyper, switches, classes = self.hyper, self.switches, self.setting.num_classes
        self.register_buffer("branch", torch.tensor(0))  # the reported one, as its index in BRANCHES
        shared = (switches.sigma, switches.alpha, hyper.cutoff)
        time, freq = (Propagation(classes, k, *shared) for k in (hyper.k_time, hyper.k_freq))
        self.co_training = CoTraining(time, freq, switches.queue)

    def outputs(self, x: Tensor) -> Outputs:
        return super().outputs(standardise(x))

    def after_outputs(self, evaluation: Evaluation) -> None:
        self.branch.fill_(better_branch(evaluation.outputs, evaluation.labels))

    def reported_branch(self) -> str:
        return BRANCHES[int(self.branch.item())]

    def memory(self) -> dict[str, Any]:
        return {"queues": self.co_training.state()}

    def load_memory(self, memory: dict[str, Any]) -> None:
        self.co_training.load(memory["queues"], self.rng.device)
