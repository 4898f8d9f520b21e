"""Inputs and expected outputs for losses, steps, propagation and metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def load_vector(name: str) -> dict[str, Any]:
    return json.loads((Path(__file__).parent / f"{name}.json").read_text(encoding="utf-8"))
