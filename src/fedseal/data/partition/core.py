"""What a partition is, what a partitioner does, and the registry of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedseal.core.errors import InputError
from fedseal.core.registry import Registry, Spec
from fedseal.core.seeds import generator
from fedseal.data.dataset import Dataset


@dataclass(frozen=True)
class Partition:
    """Which images each client holds.

    Attributes:
        name: spec of the partitioner.
        indices: per client, its places in the data set, int64, ascending.
        counts: images per client and class, int64 [clients, classes].
        note: what a reader must know beyond the counts.
    """

    name: str
    indices: tuple[Tensor, ...]
    counts: Tensor
    note: str = ""

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Images per client."""
        return tuple(len(places) for places in self.indices)

    def datasets(self, dataset: Dataset) -> list[Dataset]:
        """Return each client's part of the data set that was partitioned."""
        return [dataset.subset(places) for places in self.indices]


class Partitioner(ABC):
    """A way to deal out images.

    Attributes:
        complete: whether every image is assigned.
        note: what a reader of the partition must know; set by `deal` where there is something.
    """

    complete: bool = True
    note: str = ""

    @abstractmethod
    def deal(self, dataset: Dataset, clients: int, source: torch.Generator) -> list[Tensor]:
        """Return each client's places in the data set; no client may come away empty."""


PARTITIONERS: Registry[Partitioner] = Registry("partitioner", "fedseal.data.partition")


def partition(dataset: Dataset, spec: Spec | str, clients: int, seed: int) -> Partition:
    """Deal a data set to clients.

    Args:
        dataset: whose images.
        spec: of the partitioner.
        clients: how many.
        seed: the same one gives the same partition.
    """
    if not 0 < clients <= len(dataset):
        raise InputError(
            f"cannot deal {len(dataset)} images to {clients} clients.", hint="Use fewer clients or more data."
        )
    if dataset.labels.ndim != 1:
        raise InputError(
            f"{dataset.name} has several flags or values per image, and data is dealt to clients by classes.",
            hint="Attack a first round without a partition: leave `stage` and `client.partition` out.",
        )
    partitioner = PARTITIONERS.build(spec)
    places = [part.sort().values for part in partitioner.deal(dataset, clients, generator(seed, "partition"))]
    _check(places, dataset, clients, str(spec), partitioner.complete)
    classes = len(dataset.classes)
    counts = torch.stack([torch.bincount(dataset.labels[part], minlength=classes) for part in places])
    return Partition(str(spec), tuple(places), counts, partitioner.note)


def _check(places: list[Tensor], dataset: Dataset, clients: int, name: str, complete: bool) -> None:
    """Refuse what no partitioner may return, a user's own included."""
    if len(places) != clients:
        raise InputError(f"{name} gives {len(places)} parts for {clients} clients.", hint="They must be as many.")
    empty = [index for index, part in enumerate(places) if not len(part)]
    if empty:
        raise InputError(
            f"{name} leaves {len(empty)} of {clients} clients without any image, client-{empty[0]} first.",
            hint="Use fewer clients, more data or a milder skew.",
        )
    together = torch.cat(places)
    if int(together.min()) < 0 or int(together.max()) >= len(dataset):
        raise InputError(f"{name} names images outside of the {len(dataset)} of {dataset.name}.")
    times = torch.bincount(together, minlength=len(dataset))
    if int(times.max()) > 1:
        raise InputError(f"{name} gives image {int(times.argmax())} to more than one client, or twice to one.")
    if complete and int(times.min()) < 1:
        raise InputError(f"{name} leaves out image {int(times.argmin())}.")
