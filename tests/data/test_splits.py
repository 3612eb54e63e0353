"""The data set container and its splits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedseal.core.errors import InputError
from fedseal.data.dataset import ImageDataset, split_public


def numbered(count: int) -> ImageDataset:
    """A data set whose images can be told apart: image i holds i in its first two bytes."""
    images = torch.zeros(count, 1, 1, 2, dtype=torch.uint8)
    images[:, 0, 0, 0] = torch.arange(count) // 256
    images[:, 0, 0, 1] = torch.arange(count) % 256
    return ImageDataset("numbered", images, torch.arange(count) % 3, ("a", "b", "c"))


def numbers(dataset: ImageDataset) -> list[int]:
    pixels = dataset.images[:, 0, 0].to(torch.int64)
    return (pixels[:, 0] * 256 + pixels[:, 1]).tolist()


@settings(deadline=None, max_examples=50)
@given(size=st.integers(2, 400), fraction=st.floats(0.01, 0.99), seed=st.integers(0, 2**63 - 1))
def test_private_and_public_are_disjoint_and_complete(size: int, fraction: float, seed: int) -> None:
    dataset = numbered(size)
    count = round(size * fraction)
    if not 0 < count < size:
        with pytest.raises(InputError, match="leaves one side empty"):
            split_public(dataset, fraction, seed)
        return
    private, public = split_public(dataset, fraction, seed)
    assert len(public) == count
    assert sorted(numbers(private) + numbers(public)) == list(range(size))
    for part in (private, public):
        assert part.labels.tolist() == [number % 3 for number in numbers(part)]


def test_splits_follow_the_seed() -> None:
    dataset = numbered(200)
    first, again, other = (numbers(split_public(dataset, 0.3, seed)[1]) for seed in (1, 1, 2))
    assert first == again
    assert set(first) != set(other)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 1.5, float("nan"), float("inf")])
def test_a_fraction_outside_zero_and_one_is_refused(fraction: float) -> None:
    with pytest.raises(InputError, match="strictly between 0 and 1"):
        split_public(numbered(10), fraction, 0)


def test_batches_are_floats_in_the_unit_interval() -> None:
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1, 1)
    batch = ImageDataset("x", images, torch.tensor([0, 1, 0]), ("a", "b")).batch(torch.tensor([2, 1]))
    assert batch.images.flatten().tolist() == pytest.approx([1.0, 0.2])
    assert batch.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 1, 4, 4), torch.zeros(2, dtype=torch.int64), "needs uint8 images"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), "needs uint8 images"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64), "as many labels"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2), "needs int64 labels"),
        (torch.zeros(0, 1, 4, 4, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64), "is empty"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1]), r"labels 0\.\.1 for 1 classes"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, -1]), r"labels -1\.\.0 for 1 classes"),
    ],
)
def test_malformed_data_sets_are_refused(images: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ImageDataset("bad", images, labels, ("only",))
