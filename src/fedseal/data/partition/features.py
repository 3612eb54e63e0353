"""`total-variation`: clients differ in how smooth or detailed their images are, not in classes or amounts."""

from __future__ import annotations

import torch
from torch import Tensor

from fedseal.core.errors import UsageError
from fedseal.core.registry import Info
from fedseal.data.dataset import Dataset, of_images
from fedseal.data.partition.core import PARTITIONERS, Partitioner
from fedseal.data.partition.dealing import shuffled

_CHUNK = 1000


def image_variation(images: Tensor) -> Tensor:
    """Return the total variation of images uint8 [N, C, H, W]: mean |dx| + mean |dy| of each in [0, 1], float32 [N]."""
    parts = []
    for chunk in torch.split(images, _CHUNK):
        x = chunk.float() / 255
        across, down = x.diff(dim=3).abs(), x.diff(dim=2).abs()
        parts.append(across.flatten(1).mean(1) + down.flatten(1).mean(1))
    return torch.cat(parts)


@PARTITIONERS.register("total-variation", Info("smooth images to some clients, detailed ones to others"))
class FeatureSkew(Partitioner):
    """Images are sorted by total variation within their class and cut into equal parts, smoothest to the first client.

    Classes stay balanced, so the skew is one of features alone: what a reconstruction's total variation prior expects
    holds for some clients and not for others.

    Args:
        strength: share of the images dealt by variation; the others are dealt at random.
    """

    def __init__(self, strength: float = 1.0) -> None:
        if not 0 <= strength <= 1:
            raise UsageError(f"total-variation needs 0 <= strength <= 1, got {strength:g}.", hint="It is a share.")
        self.strength = strength

    def deal(self, dataset: Dataset, clients: int, source: torch.Generator) -> list[Tensor]:
        """Sort each class, mix as much of it as is dealt at random, and cut."""
        variation = image_variation(of_images(dataset, "dealing by texture (`total-variation`)").images)
        owned: list[list[Tensor]] = [[] for _ in range(clients)]
        first = 0
        for label in torch.unique(dataset.labels):
            places = torch.nonzero(dataset.labels == label).flatten()
            order = places[torch.argsort(variation[places], stable=True)]
            mixed = torch.rand(len(order), generator=source) >= self.strength
            order[mixed] = shuffled(order[mixed], source)
            for place, part in enumerate(_spread(order, clients, first)):
                owned[place].append(part)
            first += len(order) % clients
        return [torch.cat(parts) for parts in owned]


def _spread(places: Tensor, clients: int, first: int) -> list[Tensor]:
    """Cut into parts whose sizes differ by one at most; the larger ones start at the client numbered `first`."""
    sizes = [len(places) // clients] * clients
    for extra in range(len(places) % clients):
        sizes[(first + extra) % clients] += 1
    return list(torch.split(places, sizes))
