"""What kind of thing a batch holds: images, text, tables; further kinds are further modules, not further branches.

A modality says what its inputs look like and how they travel between devices. The model, the federation, defences of
the update and the store ask nothing else of it. What is measured of it (scores, baselines, line-ups, pictures) is its
`fedseal.modalities` module; what an attack optimises is whatever the model differentiates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from fedseal.core.errors import InputError, UsageError

IMAGE = "image"
TEXT = "text"
TABLE = "table"
TENSOR = "tensor"
"""Whatever a model takes, of which nothing is known but that its first dimension is the sample."""


class Modality(ABC):
    """One kind of input."""

    @abstractmethod
    def check(self, inputs: Tensor, labels: Tensor) -> None:
        """Refuse inputs that are not of this kind, in words."""

    def moved(self, inputs: Tensor, device: str | torch.device, dtype: torch.dtype) -> Tensor:
        """Return inputs on `device`; real ones take the model's `dtype`, whole numbers keep theirs."""
        return inputs.to(device, dtype) if inputs.is_floating_point() else inputs.to(device)


class _Image(Modality):
    """Images [B, C, H, W] in [0, 1]; labels are classes [B], or shares of them [B, classes]."""

    def check(self, inputs: Tensor, labels: Tensor) -> None:
        if inputs.ndim != 4 or len(inputs) != len(labels):
            raise InputError(
                f"a batch needs images [B, C, H, W] and labels [B], got {list(inputs.shape)} and {list(labels.shape)}."
            )

    def moved(self, inputs: Tensor, device: str | torch.device, dtype: torch.dtype) -> Tensor:
        return inputs.to(device, dtype)


class _Text(Modality):
    """Token ids [B, T], whole numbers from 0, filled up to the longest text with the encoding's filler; labels [B]."""

    def check(self, inputs: Tensor, labels: Tensor) -> None:
        if inputs.ndim != 2 or inputs.is_floating_point() or len(inputs) != len(labels):
            raise InputError(
                f"a batch of text needs whole-number token ids [B, T] and labels [B], got {inputs.dtype} "
                f"{list(inputs.shape)} and {list(labels.shape)}.",
                hint="Texts of different lengths are filled up to one: `Tokeniser.encode` does that.",
            )


class _Table(Modality):
    """Encoded rows [B, D] of real numbers, as the columns of the data set have them; labels [B]."""

    def check(self, inputs: Tensor, labels: Tensor) -> None:
        if inputs.ndim != 2 or not inputs.is_floating_point() or len(inputs) != len(labels):
            raise InputError(
                f"a batch of a table needs rows [B, D] of real numbers and labels [B], got {inputs.dtype} "
                f"{list(inputs.shape)} and {list(labels.shape)}."
            )


class _Tensor(Modality):
    """Rows of anything, one per sample, with a label each."""

    def check(self, inputs: Tensor, labels: Tensor) -> None:
        if inputs.ndim < 1 or labels.ndim < 1 or len(inputs) != len(labels):
            raise InputError(
                f"a batch needs as many labels as inputs, got {list(inputs.shape)} and {list(labels.shape)}."
            )


_MODALITIES: dict[str, Modality] = {IMAGE: _Image(), TEXT: _Text(), TABLE: _Table(), TENSOR: _Tensor()}


def register_modality(name: str, modality: Modality) -> None:
    """Add a kind of input; a clash is an error, never an overwrite."""
    if name in _MODALITIES:
        raise UsageError(f"the modality {name!r} is registered already.", hint="Choose another name.")
    _MODALITIES[name] = modality


def modality(name: str) -> Modality:
    """Return the modality of that name."""
    if name not in _MODALITIES:
        raise UsageError(f"there is no modality called {name!r}.", hint=f"Known: {', '.join(sorted(_MODALITIES))}.")
    return _MODALITIES[name]
