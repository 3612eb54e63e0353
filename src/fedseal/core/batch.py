"""A batch of labelled inputs, and the explicit normalisation between images and what a model is fed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedseal.core.errors import CapabilityError, InputError
from fedseal.core.modality import IMAGE, modality


@dataclass(frozen=True)
class Batch:
    """Labelled inputs of one modality: images [B, C, H, W] in [0, 1] with integer labels [B], unless said otherwise.

    Example:
        >>> import torch, fedseal
        >>> batch = fedseal.Batch(torch.rand(2, 3, 32, 32), torch.tensor([5, 0]))
        >>> len(batch), batch.modality, batch.pick(torch.tensor([1])).labels.tolist()
        (2, 'image', [0])

    Attributes:
        inputs: as the data set holds them, before any normalisation.
        labels: one per input.
        modality: what they are.
    """

    inputs: Tensor
    labels: Tensor
    modality: str = IMAGE

    def __post_init__(self) -> None:
        modality(self.modality).check(self.inputs, self.labels)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def images(self) -> Tensor:
        """The inputs, for what works on images only."""
        if self.modality != IMAGE:
            raise CapabilityError(
                f"this works on images, and the batch holds inputs of the kind {self.modality!r}.",
                hint="Take defences of the update (`fedseal list defences`) for other data than images.",
            )
        return self.inputs

    @property
    def numbers(self) -> Tensor:
        """The inputs, for what differentiates by them: images, rows of tables, but no ids of words."""
        if not self.inputs.is_floating_point():
            raise CapabilityError(
                f"this needs slopes by its inputs, and those of the kind {self.modality!r} are choices, without any.",
                hint="Take a defence that looks at the update alone, such as gaussian, topk or dp-sgd.",
            )
        return self.inputs

    def to(self, device: str | torch.device, dtype: torch.dtype) -> Batch:
        """Return the batch on `device`, its inputs in `dtype` where that has a meaning."""
        moved = modality(self.modality).moved(self.inputs, device, dtype)
        return Batch(moved, self.labels.to(device), self.modality)

    def pick(self, indices: Tensor | slice) -> Batch:
        """Return some of it."""
        return Batch(self.inputs[indices], self.labels[indices], self.modality)

    def split(self, sizes: list[int]) -> list[Batch]:
        """Return it in parts of these sizes."""
        parts = zip(torch.split(self.inputs, sizes), torch.split(self.labels, sizes), strict=True)
        return [Batch(inputs, labels, self.modality) for inputs, labels in parts]


def joined(batches: Sequence[Batch]) -> Batch:
    """Return batches of one modality as one."""
    kinds = {batch.modality for batch in batches}
    if len(kinds) != 1:
        raise InputError(f"only batches of one kind can be joined, got {', '.join(sorted(kinds)) or 'none'}.")
    return Batch(torch.cat([b.inputs for b in batches]), torch.cat([b.labels for b in batches]), kinds.pop())


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
