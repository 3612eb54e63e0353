"""Data sets at a fraction of their resolution."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedseal.core.errors import UsageError
from fedseal.data.registry import DATASETS
from fedseal.data.resize import at_size


def test_pixels_are_means_of_blocks():
    whole = DATASETS.build("photos")
    small = at_size(whole, 16)
    assert small.shape == (3, 16, 16)
    block = whole.images[3, 1, 4:6, 10:12].float().mean()
    assert abs(float(small.images[3, 1, 2, 5]) - float(block)) <= 0.5
    assert torch.equal(small.labels, whole.labels)
    assert at_size(whole, 32) is whole
    assert at_size(whole, None) is whole


@pytest.mark.parametrize("size", [0, 11, 64])
def test_blocks_must_fit(size: int):
    with pytest.raises(UsageError, match=f"32 x 32 pixels cannot be averaged to {size} x {size}"):
        at_size(DATASETS.build("photos"), size)


@pytest.mark.shared
def test_cifar10_at_half_resolution(shared: Path):
    small = DATASETS.build("cifar10:split=test,size=16", data_root=shared / "data")
    whole = DATASETS.build("cifar10:split=test", data_root=shared / "data")
    assert (small.name, small.shape, len(small)) == ("cifar10:size=16", (3, 16, 16), len(whole))
    assert float(small.images.float().mean()) == pytest.approx(float(whole.images.float().mean()), abs=0.1)
