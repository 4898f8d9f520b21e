"""The teacher's average; that it is no part of its method and goes through checkpoints is in test_contract.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from safeecgmatch.methods.parts.teacher import Teacher
from tests.vectors import load_vector


def small_network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


def state_of(stored: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.tensor(value) for name, value in stored.items()}


def vector_pair() -> tuple[Teacher, nn.Module, dict[str, Any]]:
    case = load_vector("ecgmatch_original_ema_lr")["ema"]
    student, teacher = small_network(), Teacher(small_network())
    student.load_state_dict(state_of(case["student"]))
    teacher.load(state_of(case["teacher_before"]))
    return teacher, student, case


def test_averages_parameters_and_copies_buffers_as_the_vector_says() -> None:
    teacher, student, case = vector_pair()
    teacher.ema_(student, case["decay"], "copy")
    for name, value in state_of(case["teacher_after"]).items():
        torch.testing.assert_close(teacher.state()[name], value, rtol=0, atol=1e-6)


def test_buffers_stay_or_are_averaged_on_request() -> None:
    teacher, student, case = vector_pair()
    teacher.ema_(student, case["decay"], "frozen")
    assert teacher.state()["1.running_mean"].tolist() == [0.0, 0.0]
    assert teacher.state()["1.num_batches_tracked"] == 0
    teacher, student, case = vector_pair()
    teacher.ema_(student, 0.5, "ema")
    assert teacher.state()["1.running_mean"].tolist() == pytest.approx([0.15, 0.15])
    assert teacher.state()["1.num_batches_tracked"] == 5
