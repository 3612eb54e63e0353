"""Partitions that leave classes alone: `iid`, and `quantity`, which skews only how much a client holds."""

from __future__ import annotations

import torch
from torch import Tensor

from fedseal.core.errors import InputError, UsageError
from fedseal.core.registry import Info
from fedseal.data.dataset import Dataset
from fedseal.data.partition.core import PARTITIONERS, Partitioner
from fedseal.data.partition.dealing import apportion, cut, shuffled


@PARTITIONERS.register("iid", Info("images dealt at random, as many to each client, give or take one"))
class Iid(Partitioner):
    """Equal random parts."""

    def deal(self, dataset: Dataset, clients: int, source: torch.Generator) -> list[Tensor]:
        """Shuffle and cut."""
        return list(torch.tensor_split(torch.randperm(len(dataset), generator=source), clients))


@PARTITIONERS.register(
    "quantity", Info("random images, but amounts that follow a power law", paper="Li et al., ICDE 2022 (quantity skew)")
)
class QuantitySkew(Partitioner):
    """Client i of K holds a share of the images in proportion to (i + 1)^-power, the clients in random order.

    Departure: Li et al. draw the shares from a Dirichlet distribution; a power law is as skewed as its exponent says
    for every seed.

    Args:
        power: 0 gives equal parts, 1 makes the largest as many times the smallest as there are clients.
        at_least: least images of a client.
    """

    def __init__(self, power: float = 1.0, at_least: int = 1) -> None:
        if not 0 <= power < float("inf"):
            raise UsageError(f"quantity needs a finite power >= 0, got {power:g}.", hint="0 gives equal parts.")
        if at_least < 1:
            raise UsageError(f"quantity needs at_least >= 1, got {at_least}.")
        self.power = power
        self.at_least = at_least

    def deal(self, dataset: Dataset, clients: int, source: torch.Generator) -> list[Tensor]:
        """Give everyone the least, and share out the rest."""
        free = len(dataset) - self.at_least * clients
        if free < 0:
            raise InputError(
                f"{len(dataset)} images cannot give {clients} clients {self.at_least} each.",
                hint="Use fewer clients, more data or a smaller at_least.",
            )
        weights = torch.arange(1, clients + 1, dtype=torch.float64) ** -self.power
        counts = apportion(len(dataset), weights / weights.sum())
        if int(counts.min()) < self.at_least:
            counts = self.at_least + apportion(free, weights / weights.sum())
        counts = shuffled(counts, source)
        return cut(torch.randperm(len(dataset), generator=source), counts)
