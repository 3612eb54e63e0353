"""A labelled data set in memory, and its split into clients' parts and the attacker's public part."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeVar

import torch
from torch import Tensor

from fedseal.core.batch import IDENTITY, Batch, Normalisation
from fedseal.core.encoding import Encoding
from fedseal.core.errors import InputError
from fedseal.core.hashing import hash_tensors
from fedseal.core.modality import IMAGE
from fedseal.core.seeds import generator


class Dataset(ABC):
    """What the federation asks of data of any kind; each kind is a frozen dataclass below this one.

    Attributes:
        name: for reports.
        labels: one per sample.
        classes: their names.
        normalisation: between inputs and model; the identity where inputs have no channels.
        notes: what was done to the data that their owner should know.
        groups: int64 [N], whose a sample is; None where every one stands alone.
    """

    name: str
    labels: Tensor
    classes: tuple[str, ...]
    normalisation: Normalisation = IDENTITY
    notes: tuple[str, ...] = ()
    groups: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    @abstractmethod
    def inputs(self) -> Tensor:
        """What is held, one row per sample."""

    @property
    @abstractmethod
    def modality(self) -> str:
        """What kind of thing they are."""

    @property
    def encoding(self) -> Encoding | None:
        """How they are made of what people know: a tokeniser, a table's columns; None where inputs speak."""
        return None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return tuple(self.inputs.shape[1:])

    @property
    def memory(self) -> int:
        """Numbers it keeps in memory."""
        return int(self.inputs.numel())

    def probe(self) -> Tensor:
        """Return two inputs no client holds, on which a model shows what it answers with."""
        return self.batch(torch.arange(2) % len(self)).inputs

    @abstractmethod
    def batch(self, indices: Tensor | None = None) -> Batch:
        """Return the samples at `indices` (all, if None)."""

    @abstractmethod
    def subset(self, indices: Tensor) -> Self:
        """Return the data set restricted to `indices`."""

    def made_like(self, first: Dataset) -> Self:
        """Return it with inputs that mean what those of `first` do, on which a model is trained; or refuse it."""
        if self.modality != first.modality or self.shape != first.shape or len(self.classes) != len(first.classes):
            raise InputError(
                f"{self.name} holds a {self.modality} of shape {list(self.shape)} per sample and {len(self.classes)} "
                f"classes, {first.name} a {first.modality} of {list(first.shape)} and {len(first.classes)}.",
                hint="Both must be of one kind.",
            )
        return self

    def digest(self, key: str = "inputs") -> str:
        """Return the hash of inputs and labels; `key` is what the inputs are called in it."""
        return hash_tensors({key: self.inputs, "labels": self.labels})

    def relabelled(self, labels: Tensor, classes: tuple[str, ...]) -> Self:
        """Return it with other labels."""
        return replace(self, labels=labels, classes=classes)  # type: ignore[type-var]

    def together_with(self, indices: Tensor) -> Tensor:
        """Return the places of all samples that share a group with one of `indices`; without groups, these."""
        if self.groups is None:
            return indices
        return torch.nonzero(torch.isin(self.groups, self.groups[indices])).flatten()


Data = TypeVar("Data", bound=Dataset)


@dataclass(frozen=True)
class ImageDataset(Dataset):
    """Images kept as bytes, handed out as floats in [0, 1].

    Example:
        >>> import torch, fedseal
        >>> pictures = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
        >>> fedseal.ImageDataset("mine", pictures, torch.tensor([0, 1]), ("cat", "dog")).shape
        (3, 8, 8)

    Attributes:
        name: for reports.
        images: uint8 [N, C, H, W].
        labels: int64 [N], each in 0..len(classes)-1; or float32 [N, K]: flags of 0 and 1, or values.
        classes: their names; of flags and values, one for each of the K.
        normalisation: the set's own channel statistics; applied only where a scenario asks for it.
        notes: what was done to the images that their owner should know.
        groups: int64 [N], whose an image is (a patient's, a lesion's): no two parts of the data share one, and no test
            set one with the data trained on, so numbers mean the same in both; None where every image stands alone.
    """

    name: str
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    normalisation: Normalisation = IDENTITY
    notes: tuple[str, ...] = ()
    groups: Tensor | None = None

    def __post_init__(self) -> None:
        columns = () if self.labels.ndim == 1 else (len(self.classes),)
        if (
            self.images.dtype != torch.uint8
            or self.images.ndim != 4
            or self.labels.shape != (*self.images.shape[:1], *columns)
        ):
            raise InputError(
                f"data set {self.name!r} needs uint8 images [N, C, H, W] and as many labels, "
                f"got {self.images.dtype} {list(self.images.shape)} and {list(self.labels.shape)}."
            )
        if self.groups is not None and (self.groups.dtype != torch.int64 or self.groups.shape != self.images.shape[:1]):
            raise InputError(
                f"data set {self.name!r} needs an int64 group for each of its {len(self.images)} images, "
                f"got {self.groups.dtype} {list(self.groups.shape)}."
            )
        if len(self.labels) == 0:
            raise InputError(f"data set {self.name!r} is empty.")
        if self.labels.dtype != (torch.int64 if self.labels.ndim == 1 else torch.float32):
            raise InputError(f"data set {self.name!r} needs int64 labels, got {self.labels.dtype}.")
        if self.labels.ndim == 1 and (int(self.labels.min()) < 0 or int(self.labels.max()) >= len(self.classes)):
            raise InputError(
                f"data set {self.name!r} has labels {int(self.labels.min())}..{int(self.labels.max())} "
                f"for {len(self.classes)} classes.",
                hint="Labels must count from 0.",
            )

    @property
    def inputs(self) -> Tensor:
        """What is held, as any data set calls it."""
        return self.images

    @property
    def modality(self) -> str:
        """Images."""
        return IMAGE

    @property
    def shape(self) -> tuple[int, int, int]:
        """C, H, W of an image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def probe(self) -> Tensor:
        """Return two grey ramps."""
        return grey_ramps(self.shape)

    def batch(self, indices: Tensor | None = None) -> Batch:
        """Return the images at `indices` (all, if None) as floats in [0, 1]."""
        images = self.images if indices is None else self.images[indices]
        labels = self.labels if indices is None else self.labels[indices]
        return Batch(images.to(torch.float32) / 255, labels)

    def subset(self, indices: Tensor) -> Self:
        """Return the data set restricted to `indices`."""
        groups = None if self.groups is None else self.groups[indices]
        return replace(self, images=self.images[indices], labels=self.labels[indices], groups=groups)


def grey_ramps(shape: Sequence[int]) -> Tensor:
    """Return two images [2, *shape] from black to white, on which a model shows what it answers with."""
    return torch.linspace(0, 1, 2 * math.prod(shape)).view(2, *shape)


def of_images(dataset: Dataset, what: str) -> ImageDataset:
    """Return a data set of images as one in memory, or refuse any other.

    Args:
        dataset: of any kind.
        what: needs images.
    """
    if dataset.modality == IMAGE and not isinstance(dataset, ImageDataset):
        about = (dataset.labels, dataset.classes, dataset.normalisation, dataset.notes, dataset.groups)
        return ImageDataset(dataset.name, dataset.inputs, *about)
    if not isinstance(dataset, ImageDataset):
        raise InputError(
            f"{what} works on images, and {dataset.name} holds {dataset.modality}.", hint="Use data of images here."
        )
    return dataset


def split_public(dataset: Data, fraction: float, seed: int) -> tuple[Data, Data]:
    """Split into (private, public): the attacker's public data is a seeded random part no client holds.

    The public part has round(len(dataset) * fraction) images; neither part may be empty. Where images belong to groups,
    whole groups are public, in random order, as long as they fit into that number: nobody's images are on both sides.
    """
    source = generator(seed, "split-public")
    order = torch.randperm(len(dataset), generator=source)
    count = round(len(dataset) * fraction) if 0 < fraction < 1 else 0
    if dataset.groups is not None:
        order, count = _by_groups(dataset.groups, count, source)
    if not 0 < count < len(dataset):
        raise InputError(
            f"a public part of {fraction:g} of {len(dataset)} images leaves one side empty.",
            hint="Choose a fraction strictly between 0 and 1"
            + ("." if dataset.groups is None else ", and data of more and smaller groups."),
        )
    return dataset.subset(order[count:]), dataset.subset(order[:count])


def _by_groups(groups: Tensor, wanted: int, source: torch.Generator) -> tuple[Tensor, int]:
    """Return the places in an order that keeps groups together, and how many of the first are whole groups."""
    members = torch.unique(groups, return_inverse=True)[1]
    sizes = torch.bincount(members)
    chosen, taken = torch.zeros(len(sizes), dtype=torch.bool), 0
    for group in torch.randperm(len(sizes), generator=source).tolist():
        if taken + int(sizes[group]) <= wanted:
            chosen[group], taken = True, taken + int(sizes[group])
    shuffled = torch.randperm(len(groups), generator=source)
    public = chosen[members[shuffled]]
    return torch.cat([shuffled[public], shuffled[~public]]), taken
