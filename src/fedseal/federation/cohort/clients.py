"""Who takes part in a cohort: a client's name, its data, and which of them it uses in a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from fedseal.core.batch import Batch, joined
from fedseal.core.errors import InputError
from fedseal.federation.client import RoundConfig


class ClientData(Protocol):
    """A client's images: an `Dataset`, or anything that hands out batches."""

    def __len__(self) -> int:
        """Return the number of images."""

    def batch(self, indices: Tensor | None = None) -> Batch:
        """Return the images at `indices`, or all."""


@dataclass(frozen=True)
class Held:
    """A client's data as a batch in memory."""

    data: Batch

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, indices: Tensor | None = None) -> Batch:
        """Return the images at `indices`, or all."""
        return self.data if indices is None else self.data.pick(indices)


Choice: TypeAlias = Callable[[ClientData, int], Sequence[Batch]]
"""Maps a client's data and the number of a round to the batches of that round's local steps."""


@dataclass(frozen=True)
class Client:
    """Who takes part.

    Attributes:
        name: of the client; states of different clients never meet.
        data: all it holds.
        config: how it trains.
        choose: what it uses of its data, or of what its defence prepared in their place.
    """

    name: str
    data: ClientData
    config: RoundConfig
    choose: Choice


def held_by(
    name: str, batches: Sequence[Batch], config: RoundConfig, defence: str, *, dataset: Batch | None = None
) -> Client:
    """Return a client whose batches are given, the same in every round.

    What its defence prepares in their place is used instead: image by image, so a defence must keep their number.

    Args:
        name: of the client.
        batches: one per local step.
        config: how it trains.
        defence: its name, for messages.
        dataset: all the client holds, which the batches are of; what is in the batches by default.
    """
    whole = joined(batches) if dataset is None else dataset
    own = Held(whole)

    def choose(data: ClientData, number: int) -> Sequence[Batch]:
        if data is own:
            return batches
        if len(data) != len(whole):
            raise InputError(
                f"{defence} made {len(data)} images of a client's {len(whole)}; batches that are given keep them all."
            )
        sizes = [len(batch) for batch in batches]
        places = torch.arange(len(whole)) if dataset is None else _places(joined(batches), dataset, defence)
        return [data.batch(part) for part in torch.split(places, sizes)]

    return Client(name, own, config, choose)


def _places(batch: Batch, dataset: Batch, defence: str) -> Tensor:
    """Return where a batch's images are in a data set, by their content and label; refuse what is not in it."""
    known = {key: place for place, key in reversed(list(enumerate(_keys(dataset))))}
    found = [known.get(key) for key in _keys(batch)]
    strangers = found.count(None)
    if strangers:
        raise InputError(
            f"{defence} changes the client's data, and {strangers} of the {len(found)} images given are not among it.",
            hint="Take the batches from the very data set that is given, unchanged, or give the batches alone.",
        )
    return torch.tensor(found)


def _keys(batch: Batch) -> list[tuple[bytes, int]]:
    images, labels = batch.inputs.detach().cpu().float(), batch.labels.tolist()
    return [(image.contiguous().numpy().tobytes(), label) for image, label in zip(images, labels, strict=True)]
