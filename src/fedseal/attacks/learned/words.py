"""Texts as the numbers a map from updates can answer with: the vectors of their words, in [0, 1], and back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedseal.core.errors import CapabilityError
from fedseal.core.knowledge import Knowledge
from fedseal.core.modality import TEXT
from fedseal.core.tokeniser import Tokeniser
from fedseal.models.text.access import word_table

_AT_ONCE = 1024


@dataclass(frozen=True)
class WordVectors:
    """The received model's table of words [V, D], scaled to [0, 1]; it is public, as the model is."""

    table: Tensor

    @property
    def width(self) -> int:
        """Numbers a word becomes."""
        return self.table.shape[1]

    def of(self, ids: Tensor) -> Tensor:
        """Return ids [..., T] as numbers [..., T D]."""
        return self.table[ids].flatten(-2)

    def nearest(self, numbers: Tensor) -> Tensor:
        """Return the ids [..., T] whose vectors are nearest to numbers [..., T D]."""
        vectors = numbers.reshape(-1, self.width).to(self.table)
        parts = [torch.cdist(part, self.table).argmin(1) for part in torch.split(vectors, _AT_ONCE)]
        return torch.cat(parts).view(*numbers.shape[:-1], -1)


def vectors_of(model: nn.Module, knowledge: Knowledge) -> WordVectors | None:
    """Return the vectors of words, where texts are attacked."""
    if knowledge.modality != TEXT:
        return None
    if not isinstance(knowledge.encoding, Tokeniser):
        raise CapabilityError("text is attacked with its tokeniser, and none is known.", hint="Attack data of text.")
    table = word_table(model, knowledge.encoding.size).module.weight.detach().float()
    return WordVectors((table - table.min()) / (table.max() - table.min()).clamp(min=1e-12))
