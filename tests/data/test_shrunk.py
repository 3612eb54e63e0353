"""Data sets at a fraction of their resolution."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedseal.core.errors import UsageError
from fedseal.data.registry import DATASETS
from fedseal.data.shrunk import shrink


def test_pixels_are_means_of_blocks():
    whole = DATASETS.build("photos")
    small = shrink(whole, 2)
    assert small.shape == (3, 16, 16)
    block = whole.images[3, 1, 4:6, 10:12].float().mean()
    assert abs(float(small.images[3, 1, 2, 5]) - float(block)) <= 0.5
    assert torch.equal(small.labels, whole.labels)
    assert torch.equal(shrink(whole, 1).images, whole.images)


def test_blocks_must_fit():
    with pytest.raises(UsageError, match="32 x 32 pixels cannot be averaged in blocks of 3"):
        shrink(DATASETS.build("photos"), 3)


@pytest.mark.shared
def test_cifar10_at_half_resolution(shared: Path):
    small = DATASETS.build("cifar10-16:split=test", data_root=shared / "data")
    whole = DATASETS.build("cifar10:split=test", data_root=shared / "data")
    assert (small.name, small.shape, len(small)) == ("cifar10-16", (3, 16, 16), len(whole))
    assert float(small.images.float().mean()) == pytest.approx(float(whole.images.float().mean()), abs=0.1)
