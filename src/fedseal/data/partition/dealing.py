"""Small steps that partitioners share."""

from __future__ import annotations

import torch
from torch import Tensor


def shuffled(places: Tensor, source: torch.Generator) -> Tensor:
    """Return places [N] in random order."""
    return places[torch.randperm(len(places), generator=source)]


def apportion(total: int, shares: Tensor) -> Tensor:
    """Cut a number into whole parts, int64 [K], nearest to shares [K] that add up to 1 (largest remainders)."""
    exact = shares.double() * total
    counts = exact.floor().to(torch.int64)
    missing = total - int(counts.sum())
    counts[torch.argsort(exact - counts, descending=True, stable=True)[:missing]] += 1
    return counts


def cut(places: Tensor, counts: Tensor) -> list[Tensor]:
    """Cut places [N] into parts of the given sizes, which add up to N."""
    return list(torch.split(places, counts.tolist()))
