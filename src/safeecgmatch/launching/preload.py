"""Imported once by multiprocessing's fork server, from which cells are forked: 0.1 instead of 2.5 seconds each.

Starts no thread and touches no GPU: a fork would survive neither.
"""

from __future__ import annotations

from importlib import import_module

import torch

import safeecgmatch.launching.local
import safeecgmatch.launching.train_cell  # noqa: F401
from safeecgmatch.engine.fingerprint import code_of
from safeecgmatch.protocols import known_methods, method_module

for method in known_methods():
    import_module(method_module(method))
    code_of(method)  # keeps what it has read

parameter = torch.nn.Parameter(torch.zeros(1))
parameter.grad = torch.zeros(1)
torch.optim.Adam([parameter], fused=True).step()  # torch imports its compiler then, whether it is used or not
