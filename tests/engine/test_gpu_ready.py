"""What can be known about a GPU without having one, of every method under both protocols.

A short run is brought to its last phase on the CPU; the next iterations are made on torch's `meta` device, which holds
no numbers: whatever asks the device for one (`item`, `bool`, a mask as an index) raises, and so does mixing it with
the host. An evaluation follows, which may bring numbers to the host, by `item` and `cpu` alone. The operations on the
device are compared with the documented list of those that raise on CUDA where algorithms must be deterministic, and the
same iterations are made on the CPU in bfloat16.
"""

from __future__ import annotations

import functools
import io
import math
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields, is_dataclass, replace
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from safeecgmatch.engine.loop import Training
from safeecgmatch.engine.signals import SignalSet
from safeecgmatch.methods.parts.propagation import CoTraining
from safeecgmatch.methods.parts.teacher import Teacher
from safeecgmatch.protocols import known_methods
from tests.methods.harness import run_to, toy_training

ITERATIONS, REACHED = 12, 10  # past the release's four epochs of two; queues of three batches are full
META = torch.device("meta")
HOST = {"selected"}  # OpenMatch's list of pool positions, read by the host to gather records
CELLS = [(name, protocol, False) for name in known_methods() for protocol in ("paper", "release")]
CELLS += [("tstfc", "release", True)]  # with the propagation that the published code never reaches
EVERY_CELL = pytest.mark.parametrize(("name", "protocol", "reachable"), CELLS, scope="module")  # cell by cell


def new(name: str, protocol: str, reachable: bool) -> Training:
    options: dict[str, Any] = {"lambda_sum": 1.0} if name == "safeecgmatch" else {}
    options |= {"switches": {"warmup_counts": "iterations", "warm_up": 1}} if reachable else {}
    return toy_training(name, protocol, ITERATIONS, 2, batch=4, learning_rate=1e-3, **options)


@functools.cache
def checkpoint(name: str, protocol: str, reachable: bool) -> bytes:
    training, file = new(name, protocol, reachable), io.BytesIO()
    run_to(training, REACHED)
    torch.save(training.state(), file)
    return file.getvalue()


def late(name: str, protocol: str, reachable: bool) -> Training:
    """In its last phase, on the CPU."""
    training = new(name, protocol, reachable)
    training.load(torch.load(io.BytesIO(checkpoint(name, protocol, reachable)), weights_only=True))
    return training


def on_meta(value: Any) -> Any:
    """The same with every tensor on the `meta` device; rows of a `SignalSet` stay on the host, as everywhere."""
    if isinstance(value, Tensor):
        return value.to(META)
    if isinstance(value, dict):
        return {key: on_meta(content) for key, content in value.items()}
    if isinstance(value, list | tuple):
        moved = [on_meta(content) for content in value]
        return type(value)(*moved) if hasattr(value, "_fields") else type(value)(moved)
    if isinstance(value, SignalSet):
        return SignalSet(on_meta(value.source), value.rows, on_meta(value.labels))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: on_meta(getattr(value, field.name)) for field in fields(value)})
    if isinstance(value, Teacher | CoTraining):
        for name, content in vars(value).items():
            setattr(value, name, on_meta(content))
    if isinstance(value, nn.Module):
        value.to(META)
        for module in value.modules():
            plain = {name: content for name, content in vars(module).items() if not name.startswith("_")}
            module.__dict__.update({name: on_meta(plain[name]) for name in plain.keys() - HOST})
    return value


def move(training: Training) -> None:
    """All of it to the `meta` device but the generators, which do not exist there: views draw no numbers anyway."""
    training.method = on_meta(training.method)
    for name in ("labelled", "pool", "validation", "open_test"):
        setattr(training, name, on_meta(getattr(training, name)))
    training.device = training.rng.device = META
    make = training.rng._get
    training.rng._get = lambda purpose, device: make(purpose, torch.device("cpu"))  # type: ignore[method-assign]
    training.optimizer = torch.optim.Adam(training.method.parameters(), foreach=False)  # fused knows no such device
    training.method.optimizer = training.optimizer
    training.monitor.clear()


class Census(TorchDispatchMode):
    """The names of all operations on the device, forward and backward, each with the type of its first tensor there."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[str, torch.dtype]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = chain.from_iterable(content if isinstance(content, list) else [content] for content in (*args, result))
        there = [value.dtype for value in given if isinstance(value, Tensor) and value.is_meta]
        if there:
            self.seen.add((func.overloadpacket.__name__, there[0]))
        return result


def brought_home(patch: pytest.MonkeyPatch) -> None:
    """`cpu` and `item` give something, as from a device with numbers; everything else that asks for one raises."""
    to_host, to_number = Tensor.cpu, Tensor.item
    zeros = lambda x: torch.zeros(x.shape, dtype=x.dtype)  # noqa: E731
    patch.setattr(Tensor, "cpu", lambda self: zeros(self) if self.is_meta else to_host(self))
    patch.setattr(Tensor, "item", lambda self: 1.0 if self.is_meta else to_number(self))


@functools.cache
def operations(name: str, protocol: str, reachable: bool) -> frozenset[tuple[str, torch.dtype]]:
    training = late(name, protocol, reachable)
    move(training)
    with pytest.MonkeyPatch.context() as patch, Census() as census:
        patch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # knows no such device, and is off anyway
        while training.n < ITERATIONS:
            training.iterate()
        brought_home(patch)
        training.evaluate()
    assert training.history[-1]["iteration"] == ITERATIONS
    return frozenset(census.seen)


@EVERY_CELL
def test_a_step_asks_the_device_for_nothing_and_an_evaluation_by_cpu_and_item_alone(
    name: str, protocol: str, reachable: bool
) -> None:
    """Nor mixes it with the host: either would raise."""
    assert "convolution_backward" in {operation for operation, _ in operations(name, protocol, reachable)}


@pytest.mark.parametrize(
    "careless",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.cpu(),
        lambda x: x + torch.ones(3),
    ],
)
def test_the_device_without_numbers_raises(careless: Callable[[Tensor], Any]) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        careless(torch.ones(3, device=META))


# Operations by which each entry of torch's list would show; the test below compares the entries with the installed one.
RAISING = {
    "torch.nn.AvgPool3d": {"avg_pool3d_backward"},
    "torch.nn.AdaptiveAvgPool2d": {"_adaptive_avg_pool2d_backward"},
    "torch.nn.AdaptiveAvgPool3d": {"_adaptive_avg_pool3d_backward"},
    "torch.nn.AdaptiveMaxPool2d": {"adaptive_max_pool2d_backward"},
    "torch.nn.FractionalMaxPool2d": {"fractional_max_pool2d_backward"},
    "torch.nn.FractionalMaxPool3d": {"fractional_max_pool3d_backward"},
    "torch.nn.MaxUnpool1d": {"max_unpool2d"},
    "torch.nn.MaxUnpool2d": {"max_unpool2d"},
    "torch.nn.MaxUnpool3d": {"max_unpool3d"},
    "torch.nn.functional.interpolate": {
        "upsample_linear1d_backward",
        "upsample_bilinear2d_backward",
        "upsample_bicubic2d_backward",
        "upsample_trilinear3d_backward",
    },
    "torch.nn.ReflectionPad1d": {"reflection_pad1d_backward"},
    "torch.nn.ReflectionPad2d": {"reflection_pad2d_backward"},
    "torch.nn.ReflectionPad3d": {"reflection_pad3d_backward"},
    "torch.nn.NLLLoss": {"nll_loss_forward", "nll_loss2d_forward", "nll_loss_backward", "nll_loss2d_backward"},
    "torch.nn.CTCLoss": {"_ctc_loss_backward"},
    "torch.nn.EmbeddingBag": {"_embedding_bag_backward", "_embedding_bag_dense_backward"},
    "torch.Tensor.put_": {"put", "put_"},
    "torch.histc": {"histc"},
    "torch.bincount": {"bincount"},
    "torch.median": {"median", "nanmedian"},
    "torch.nn.functional.grid_sample": {"grid_sampler_2d_backward", "grid_sampler_3d_backward"},
    "torch.cumsum": {"cumsum", "cumsum_"},
    "torch.Tensor.scatter_reduce": {"scatter_reduce", "scatter_reduce_"},
    "torch.Tensor.resize_": {"resize_"},
}
ROWS = "rows of logits: only the form for images, nll_loss2d, adds in no fixed order"
EXPLAINED = {
    ("nll_loss_forward", torch.float32): ROWS,
    ("nll_loss_backward", torch.float32): ROWS,
    ("nll_loss_forward", torch.float64): ROWS,
    ("nll_loss_backward", torch.float64): ROWS,
    ("cumsum", torch.int64): "whole numbers (the time warp counts samples): only sums of fractions raise",
}


def test_the_list_of_operations_is_that_of_the_installed_torch() -> None:
    text = torch.use_deterministic_algorithms.__doc__
    assert text is not None
    listed = text.split("operations will throw a")[1].split("In addition")[0]
    assert set(re.findall(r"\* :\w+:`([\w.]+)`", listed)) == set(RAISING)


@EVERY_CELL
def test_no_operation_raises_where_algorithms_must_be_deterministic(name: str, protocol: str, reachable: bool) -> None:
    suspects = set().union(*RAISING.values())
    assert {seen for seen in operations(name, protocol, reachable) if seen[0] in suspects} <= set(EXPLAINED)


def test_every_explanation_is_needed() -> None:
    cells = (("complematch", "paper", False), ("adello", "paper", False))
    assert set(EXPLAINED) <= set().union(*(operations(*cell) for cell in cells))


# SafeStudent splits a batch at percentiles of itself: where two records of four tie in bfloat16, another set is taken.
TOLERANCE = {("safestudent", "paper"): 0.3}


@EVERY_CELL
@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_half_precision_gives_nearly_the_same_losses(name: str, protocol: str, reachable: bool) -> None:
    """The first iteration has the same weights and views in both; then other choices may be made. All stay finite.

    Without oneDNN, which may take instructions for bfloat16 that a virtual machine names but forbids.
    """
    with torch.backends.mkldnn.flags(enabled=False):
        full, half = (losses_of(late(name, protocol, reachable), amp) for amp in ("off", "bf16"))
    assert half[0] == pytest.approx(full[0], rel=TOLERANCE.get((name, protocol), 0.02)) and half[0] != full[0]
    assert all(map(math.isfinite, full + half))


def losses_of(training: Training, amp: str) -> list[float]:
    training.amp, totals = amp, []
    while not training.finished:
        training.monitor.clear()
        training.iterate()
        totals.append(float(training.monitor.sums["loss.total"]))
    return totals
