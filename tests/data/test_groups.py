"""Grouped data: whose an image is decides on which side it lies, for every split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedseal.audit.scenario import Scenario
from fedseal.audit.targets import Targets, images_per_target
from fedseal.core.errors import InputError
from fedseal.data.dataset import ImageDataset, split_public
from fedseal.data.registry import DATASETS


def data_of(groups: list[int]) -> ImageDataset:
    """Return one-pixel images whose value is their place."""
    images = torch.arange(len(groups), dtype=torch.uint8).view(-1, 1, 1, 1)
    labels = torch.arange(len(groups)) % 2
    return ImageDataset("grouped", images, labels, ("a", "b"), groups=torch.tensor(groups))


@settings(max_examples=60, deadline=None)
@given(
    groups=st.lists(st.integers(0, 12), min_size=24, max_size=120),
    fraction=st.floats(0.1, 0.9),
    seed=st.integers(0, 1 << 30),
    partitioned=st.booleans(),
)
def test_public_private_and_strangers_never_share_a_group(
    groups: list[int], fraction: float, seed: int, partitioned: bool
) -> None:
    dataset = data_of(groups)
    try:
        private, public = split_public(dataset, fraction, seed)
    except InputError:  # a group that holds nearly everything leaves one side empty
        return
    assert private.groups is not None
    assert public.groups is not None
    assert not set(private.groups.tolist()) & set(public.groups.tolist())
    assert sorted(private.images.flatten().tolist() + public.images.flatten().tolist()) == list(range(len(groups)))
    assert len(public) <= round(fraction * len(groups))
    client = {"partition": "iid", "population": 2} if partitioned else {}
    scenario = Scenario(targets=2, seed=seed, client=client)
    targets = Targets(private, scenario, images_per_target(scenario, len(private)))
    try:
        strangers, attacked = private.batch(targets.strangers()), targets.attacked
    except InputError:
        return
    places = strangers.images.mul(255).round().flatten().long()
    theirs = {groups[place] for place in places.tolist()}
    assert not theirs & set(private.groups[attacked].tolist())
    assert not theirs & set(public.groups.tolist())


def test_images_without_groups_are_split_as_ever() -> None:
    alone = data_of([0] * 10)
    private, public = split_public(ImageDataset("plain", alone.images, alone.labels, alone.classes), 0.3, 1)
    assert (len(private), len(public)) == (7, 3)
    assert private.groups is None


def test_an_archive_says_whose_images_are(tmp_path: Path) -> None:
    path = tmp_path / "lesions.npz"
    owners = np.array(["b", "a", "b", "c"])
    np.savez(path, images=np.zeros((4, 8, 8), np.uint8), labels=np.arange(4) % 2, lesion=owners, wrong=np.zeros(3, int))
    found = DATASETS.build(f"npz:{path}?group=lesion", data_root=None)
    assert found.groups is not None
    assert found.groups.tolist() == [1, 0, 1, 2]
    assert DATASETS.build(f"npz:{path}", data_root=None).groups is None
    with pytest.raises(InputError, match="no array 'lesions' of groups"):
        DATASETS.build(f"npz:{path}?group=lesions", data_root=None)
    with pytest.raises(InputError, match="one for each image"):
        DATASETS.build(f"npz:{path}?group=wrong", data_root=None)


def test_one_group_for_all_is_refused_in_words() -> None:
    with pytest.raises(InputError, match="more and smaller groups"):
        split_public(data_of([3] * 10), 0.3, 0)
