"""`cifar10-16`: CIFAR-10 at half its resolution, for attacks that must be trained on an ordinary computer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import functional as F

from fedseal.core.errors import UsageError
from fedseal.core.registry import Info
from fedseal.data.dataset import ImageDataset
from fedseal.data.local import CIFAR10, load
from fedseal.data.npz import Split
from fedseal.data.registry import DATASETS


@DATASETS.register(
    "cifar10-16",
    Info(
        summary="CIFAR-10 averaged to 3 x 16 x 16: `fedseal data get cifar10`",
        paper="Krizhevsky, tech. report 2009",
    ),
)
def cifar10_16(split: Split = "train", data_root: Path | None = None) -> ImageDataset:
    """Return CIFAR-10's training or test part, images [N, 3, 16, 16], each pixel the mean of four."""
    return replace(shrink(load(CIFAR10, split, data_root), 2), name="cifar10-16")


def shrink(dataset: ImageDataset, factor: int) -> ImageDataset:
    """Return the data set with every block of `factor` x `factor` pixels averaged to one."""
    height, width = dataset.shape[1:]
    if factor < 1 or height % factor or width % factor:
        raise UsageError(f"images of {height} x {width} pixels cannot be averaged in blocks of {factor}.")
    small = F.avg_pool2d(dataset.images.float(), factor).round().to(torch.uint8)
    return replace(dataset, images=small)
