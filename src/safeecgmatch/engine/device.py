"""Every line that depends on the device is here."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

import torch

from safeecgmatch.errors import UserError

RESIDENT_SHARE = 0.6  # of the free device memory that the dataset may take; the rest is for networks and views


def prepare(name: str, threads: int) -> torch.device:
    """Choose the device and make its arithmetic repeatable: same params, same machine, same bytes."""
    torch.set_num_threads(threads)
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("params.yaml: train.device is 'cuda', but torch sees no GPU; use 'auto' or 'cpu'.")
    device = torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what deterministic cuBLAS asks for
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
    torch.use_deterministic_algorithms(True)
    # A debugging aid that costs time in every operation.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return device


def autocast(device: torch.device, amp: str) -> AbstractContextManager[object]:
    """bfloat16 arithmetic inside networks where asked for; weights, losses and optimiser stay float32."""
    return nullcontext() if amp == "off" else torch.autocast(device.type, dtype=torch.bfloat16)


def fits(device: torch.device, size: int) -> bool:
    """Whether a dataset of `size` bytes should live on the device; on a CPU the mapped file serves as well."""
    if device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return size <= RESIDENT_SHARE * free


def adam(parameters: list[torch.nn.Parameter], learning_rate: float) -> torch.optim.Adam:
    """Adam with the paper's settings, in the fused form: one kernel for a whole step on CPU and GPU."""
    return torch.optim.Adam(parameters, lr=learning_rate, betas=(0.9, 0.999), eps=1e-8, fused=True)
