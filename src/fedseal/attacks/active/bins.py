"""Equal-mass bins of a scalar statistic of images, and how many samples of a batch have one to themselves."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from scipy.stats import laplace, norm
from torch import Tensor

from fedseal.core.errors import InputError

Law: TypeAlias = Literal["normal", "laplace"]
FIRST_EDGE = -10.0
"""Left edge of the first bin, in deviations: every image lies above."""


def bin_edges(bins: int, law: Law) -> Tensor:
    """Return the left edges [bins] of equal-mass bins of a standardised statistic; the first lies below everything."""
    if bins < 2:
        raise InputError(f"{bins} bins separate nothing.", hint="Use at least 2.")
    shares = torch.arange(1, bins, dtype=torch.float64) / bins
    inner = norm.ppf(shares.numpy()) if law == "normal" else laplace.ppf(shares.numpy(), scale=1 / math.sqrt(2))
    return torch.cat([torch.tensor([FIRST_EDGE], dtype=torch.float64), torch.as_tensor(inner)])


def bin_widths(edges: Tensor) -> Tensor:
    """Return the widths [bins]; the last bin ends as far out as the first begins."""
    return torch.diff(edges, append=edges.new_tensor([-FIRST_EDGE]))
