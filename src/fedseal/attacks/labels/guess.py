"""What a label rule returns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LabelGuess:
    """Inferred labels [B] in ascending order, and what is uncertain about them."""

    labels: Tensor
    notes: tuple[str, ...] = ()


def guess_from_counts(counts: Tensor, notes: Iterable[str] = ()) -> LabelGuess:
    """Return the guess with `counts[c]` labels of each class c; `counts` are integers [C]."""
    classes = torch.arange(len(counts), device=counts.device)
    return LabelGuess(torch.repeat_interleave(classes, counts), tuple(notes))
