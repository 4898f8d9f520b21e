"""Imported once by multiprocessing's fork server, from which cells are forked: 0.1 instead of 2.5 seconds each.

Starts no thread and touches no GPU: a fork would survive neither.
"""

import torch

import safeecgmatch.launching.local
import safeecgmatch.launching.train_cell  # noqa: F401

PARAMETER = torch.nn.Parameter(torch.zeros(1))
PARAMETER.grad = torch.zeros(1)
torch.optim.Adam([PARAMETER], fused=True).step()  # torch imports its compiler then, whether it is used or not
