"""What SafeECGMatch's second branch sees."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from safeecgmatch.engine.views import mask_band, spectrum

Transform = Callable[[Tensor], Tensor]


def log_spectrum(x: Tensor) -> Tensor:
    """log(1 + |rFFT|), each record to zero mean and unit population std over all leads and bins (std 0 -> 1).

    One mean and one std per record keep the relation between its leads.
    """
    y = spectrum(x).log1p()
    std, mean = torch.std_mean(y, dim=(1, 2), correction=0, keepdim=True)
    return (y - mean) / torch.where(std > 0, std, torch.ones_like(std))


def spectral_views(views: list[Tensor], generator: Generator, transform: Transform = spectrum) -> list[Tensor]:
    """Spectra of the three weak views (Eq. 6), and that of the first unlabelled one with a band masked (Eq. 7).

    The mask is laid over what the branch sees, so that all other bins equal those of the weak view whatever the
    `transform`: it writes 0, which is no energy in |rFFT| and the mean of the record in `log_spectrum`.
    """
    labelled, first, second = (transform(view) for view in views[:3])
    return [labelled, first, second, mask_band(first, generator)]
