"""A labelled set of texts in memory, as ids of one tokeniser."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from fedseal.core.batch import IDENTITY, Batch, Normalisation
from fedseal.core.encoding import Encoding
from fedseal.core.errors import InputError
from fedseal.core.modality import TEXT
from fedseal.core.tokeniser import Tokeniser
from fedseal.data.dataset import Dataset


@dataclass(frozen=True)
class TextDataset(Dataset):
    """Texts as ids [N, T], filled up behind short ones.

    Attributes:
        name: for reports.
        ids: int64 [N, T].
        labels: int64 [N], each in 0..len(classes)-1.
        classes: their names.
        tokeniser: that made the ids.
        notes: what was done to the texts that their owner should know.
        groups: whose a text is; None where every one stands alone.
    """

    name: str
    ids: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    tokeniser: Tokeniser
    notes: tuple[str, ...] = ()
    groups: Tensor | None = None
    normalisation: Normalisation = IDENTITY

    def __post_init__(self) -> None:
        if self.ids.ndim != 2 or self.ids.dtype != torch.int64 or self.labels.shape != self.ids.shape[:1]:
            raise InputError(
                f"data set {self.name!r} needs int64 ids [N, T] and as many labels, got {self.ids.dtype} "
                f"{list(self.ids.shape)} and {list(self.labels.shape)}."
            )
        if len(self.ids) == 0:
            raise InputError(f"data set {self.name!r} is empty.")
        if int(self.labels.min()) < 0 or int(self.labels.max()) >= len(self.classes):
            raise InputError(f"data set {self.name!r} has labels beyond its {len(self.classes)} classes.")
        self.tokeniser.check(self.ids)

    @property
    def inputs(self) -> Tensor:
        """The ids."""
        return self.ids

    @property
    def modality(self) -> str:
        """Text."""
        return TEXT

    @property
    def encoding(self) -> Encoding:
        """The tokeniser."""
        return self.tokeniser

    def probe(self) -> Tensor:
        """Return two texts of the first tokens there are, and of the last one, which nobody wrote."""
        tried = (torch.arange(2 * self.ids.shape[1]) % self.tokeniser.size).view(2, -1).flip(1)
        tried[1, 0] = self.tokeniser.size - 1
        return tried

    def made_like(self, first: Dataset) -> Self:
        """Return the texts, if one tokeniser made the ids of both; ids of another mean other words."""
        other = first.encoding
        if isinstance(other, Tokeniser) and other.identity != self.tokeniser.identity:
            raise InputError(
                f"the texts of {self.name} and {first.name} were cut by two tokenisers ({self.tokeniser.describe()}; "
                f"{other.describe()}).",
                hint="Give both the same `tokens`, `vocabulary` and `length`, or leave `test` out: a share is held "
                "out then.",
            )
        return super().made_like(first)

    def batch(self, indices: Tensor | None = None) -> Batch:
        """Return the texts at `indices` (all, if None)."""
        if indices is None:
            return Batch(self.ids, self.labels, TEXT)
        return Batch(self.ids[indices], self.labels[indices], TEXT)

    def subset(self, indices: Tensor) -> Self:
        """Return the data set restricted to `indices`."""
        groups = None if self.groups is None else self.groups[indices]
        return replace(self, ids=self.ids[indices], labels=self.labels[indices], groups=groups)
