"""Partitions that skew what classes a client sees: `dirichlet` and `classes`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedseal.core.errors import InputError, UsageError
from fedseal.core.registry import Info
from fedseal.data.dataset import Dataset
from fedseal.data.partition.core import PARTITIONERS, Partitioner
from fedseal.data.partition.dealing import apportion, cut, shuffled

_ATTEMPTS = 1000


@PARTITIONERS.register(
    "dirichlet",
    Info("each class is shared out by proportions drawn from Dirichlet(alpha)", paper="Yurochkin et al., ICML 2019"),
)
class Dirichlet(Partitioner):
    """For every class, proportions over the clients are drawn from a symmetric Dirichlet distribution.

    Drawn again until every client holds `at_least` images, as the authors do.

    Args:
        alpha: concentration; large is like `iid`, small gives clients few classes.
        at_least: least images of a client.
    """

    def __init__(self, alpha: float = 0.5, at_least: int = 10) -> None:
        if not 0 < alpha < float("inf"):
            raise UsageError(f"dirichlet needs a finite alpha > 0, got {alpha:g}.", hint="0.1 is strongly skewed.")
        if at_least < 1:
            raise UsageError(f"dirichlet needs at_least >= 1, got {at_least}.")
        self.alpha = alpha
        self.at_least = at_least

    def deal(self, dataset: Dataset, clients: int, source: torch.Generator) -> list[Tensor]:
        """Share out class by class."""
        if self.at_least * clients > len(dataset):
            raise InputError(
                f"{len(dataset)} images cannot give {clients} clients {self.at_least} each.",
                hint="Use fewer clients, more data or a smaller at_least.",
            )
        classes = [torch.nonzero(dataset.labels == label).flatten() for label in range(len(dataset.classes))]
        present = [places for places in classes if len(places)]
        for _ in range(_ATTEMPTS):
            shares = _dirichlet(self.alpha, len(present), clients, source)
            counts = torch.stack([apportion(len(p), share) for p, share in zip(present, shares, strict=True)])
            if int(counts.sum(0).min()) >= self.at_least:
                break
        else:
            raise InputError(
                f"dirichlet with alpha = {self.alpha:g} gave some of {clients} clients fewer than {self.at_least} "
                f"images, {_ATTEMPTS} times.",
                hint="Use fewer clients, a larger alpha or a smaller at_least.",
            )
        parts = [cut(shuffled(places, source), own) for places, own in zip(present, counts, strict=True)]
        return [torch.cat([part[client] for part in parts]) for client in range(clients)]


def _dirichlet(alpha: float, rows: int, columns: int, source: torch.Generator) -> Tensor:
    """Draw `rows` symmetric Dirichlet vectors [rows, columns]; by numpy, as PyTorch's own take no generator."""
    seed = int(torch.randint(2**62, (), generator=source))
    return torch.from_numpy(np.random.default_rng(seed).dirichlet([alpha] * columns, rows))


@PARTITIONERS.register(
    "classes",
    Info("each client holds images of a fixed number of classes", paper="McMahan et al., AISTATS 2017"),
)
class ClassesPerClient(Partitioner):
    """Every client holds so many classes; a class is shared equally by the clients that hold it.

    Classes are dealt round by round so that all are held by equally many clients, give or take one; the original cuts
    the images sorted by class into two shards per client, which may give a client one class twice.

    Args:
        per_client: number of classes.
    """

    def __init__(self, per_client: int = 2) -> None:
        if per_client < 1:
            raise UsageError(f"classes needs per_client >= 1, got {per_client}.")
        self.per_client = per_client

    def deal(self, dataset: Dataset, clients: int, source: torch.Generator) -> list[Tensor]:
        """Deal classes to clients, then share out each class."""
        present = [int(label) for label in torch.unique(dataset.labels)]
        if self.per_client > len(present):
            raise InputError(
                f"{self.per_client} classes per client are more than the {len(present)} there are.",
                hint="Lower per_client.",
            )
        if self.per_client * clients < len(present):
            raise InputError(
                f"{clients} clients of {self.per_client} classes cannot hold all {len(present)} classes.",
                hint="Raise per_client, or use more clients.",
            )
        held = _deal_classes(len(present), self.per_client, clients, source)
        owned: list[list[Tensor]] = [[] for _ in range(clients)]
        for place, label in enumerate(present):
            holders = [client for client in range(clients) if place in held[client]]
            images = shuffled(torch.nonzero(dataset.labels == label).flatten(), source)
            if len(images) < len(holders):
                raise InputError(
                    f"class {dataset.classes[label]!r} has {len(images)} images for {len(holders)} clients.",
                    hint="Use fewer clients or more data.",
                )
            for client, part in zip(holders, torch.tensor_split(images, len(holders)), strict=True):
                owned[client].append(part)
        return [torch.cat(parts) for parts in owned]


def _deal_classes(classes: int, per_client: int, clients: int, source: torch.Generator) -> list[set[int]]:
    """Give each client so many different classes, every class to equally many clients, give or take one."""
    held: list[set[int]] = []
    times = torch.zeros(classes, dtype=torch.float64)
    for _ in range(clients):
        ties = torch.rand(
            classes, generator=source, dtype=torch.float64
        )  # the least held first, at random among equals
        chosen = torch.argsort(times + 0.5 * ties)[:per_client]
        times[chosen] += 1
        held.append({int(place) for place in chosen})
    return held
