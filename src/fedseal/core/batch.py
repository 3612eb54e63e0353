"""A batch of labelled images and the explicit normalisation between images and model inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseal.core.errors import InputError


@dataclass(frozen=True)
class Batch:
    """Images [B, C, H, W] in [0, 1] with integer labels [B].

    Example:
        >>> import torch, fedseal
        >>> len(fedseal.Batch(torch.rand(2, 3, 32, 32), torch.tensor([5, 0])))
        2
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or len(self.images) != len(self.labels):
            raise InputError(
                f"a batch needs images [B, C, H, W] and labels [B], got {list(self.images.shape)} "
                f"and {list(self.labels.shape)}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: str | torch.device, dtype: torch.dtype) -> Batch:
        """Return the batch on `device` with images of `dtype`."""
        return Batch(self.images.to(device, dtype), self.labels.to(device))


@dataclass(frozen=True)
class Normalisation:
    """Per-channel mean and standard deviation: the model sees (x - mean) / std of an image x in [0, 1].

    Example:
        >>> import torch, fedseal
        >>> float(fedseal.Normalisation(mean=(0.5,), std=(0.25,))(torch.ones(1, 1, 1)))
        2.0
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or any(value <= 0 for value in self.std):
            raise InputError(f"normalisation needs as many means as positive deviations, got {self}.")

    @property
    def is_identity(self) -> bool:
        """Whether images reach the model as they are."""
        return all(m == 0 for m in self.mean) and all(s == 1 for s in self.std)

    def __call__(self, images: Tensor) -> Tensor:
        """Turn images [..., C, H, W] into model inputs."""
        if self.is_identity:
            return images
        mean, std = self._tensors(images)
        return (images - mean) / std

    def undo(self, inputs: Tensor) -> Tensor:
        """Turn model inputs [..., C, H, W] back into images."""
        if self.is_identity:
            return inputs
        mean, std = self._tensors(inputs)
        return inputs * std + mean

    def _tensors(self, like: Tensor) -> tuple[Tensor, Tensor]:
        return like.new_tensor(self.mean).view(-1, 1, 1), like.new_tensor(self.std).view(-1, 1, 1)


IDENTITY = Normalisation()
"""Images enter the model as they are."""
