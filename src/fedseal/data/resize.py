"""Data sets at a fraction of their resolution (`cifar10:size=16`), for what must be trained on an ordinary computer."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn import functional as F

from fedseal.core.errors import UsageError
from fedseal.data.dataset import ImageDataset


def at_size(dataset: ImageDataset, size: int | None) -> ImageDataset:
    """Return the data set with images of `size` x `size` pixels, each the mean of a block; None leaves them alone."""
    if size is None or dataset.shape[1:] == (size, size):
        return dataset
    height, width = dataset.shape[1:]
    if size < 1 or height != width or height % size:
        raise UsageError(
            f"images of {height} x {width} pixels cannot be averaged to {size} x {size}.",
            hint="Name a size that divides theirs.",
        )
    small = F.avg_pool2d(dataset.images.float(), height // size).round().to(torch.uint8)
    return replace(dataset, images=small, name=f"{dataset.name}:size={size}")
