"""Inputs and expected outputs for losses, steps, propagation and metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

EXACT = {"rtol": 0.0, "atol": 1e-6}


def load_vector(name: str) -> dict[str, Any]:
    return json.loads((Path(__file__).parent / f"{name}.json").read_text(encoding="utf-8"))


def double(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
