"""Packs of JPEG files in a numpy archive: read whole or in part, at any size, and refused in words."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedseal.core.errors import InputError, UsageError
from fedseal.data.groups import number_owners
from fedseal.data.npz import npz
from fedseal.data.registry import DATASETS

SIDES = ((40, 32), (32, 32), (33, 50))


def _jpeg(width: int, height: int, level: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), (level, 255 - level, 7)).save(file, "JPEG", quality=95)
    return file.getvalue()


def pack(path: Path, **changed: Any) -> Path:
    files = [_jpeg(*side, 100 * place) for place, side in enumerate(SIDES)]
    arrays = {
        "jpeg": np.frombuffer(b"".join(files), dtype=np.uint8),
        "offsets": np.cumsum([0, *map(len, files)]),
        "labels": np.array([0, 1, 1]),
        "is_val": np.array([False, True, False]),
        "class_names": np.array(["cat", "dog"]),
        "patient": np.array(["b", "a", "a"]),
    } | changed
    file = path / "pack.npz"
    np.savez(file, **{name: values for name, values in arrays.items() if values is not None})
    return file


def test_pictures_come_in_the_size_of_the_first_one(tmp_path: Path):
    dataset = npz(pack(tmp_path))
    assert dataset.shape == (3, 32, 32)
    assert dataset.classes == ("cat", "dog")
    reds = dataset.images[:, 0].float().mean((1, 2))
    assert torch.allclose(reds, torch.tensor([0.0, 100.0, 200.0]), atol=3)


def test_size_channels_part_and_group_are_options(tmp_path: Path):
    dataset = DATASETS.build(f"npz:path={pack(tmp_path)},size=16,channels=1,split=train,group=patient")
    assert dataset.shape == (1, 16, 16)
    assert dataset.labels.tolist() == [0, 1]
    assert dataset.groups is not None
    assert torch.equal(dataset.groups, number_owners(["b", "a"]))
    assert len(DATASETS.build(f"npz:path={pack(tmp_path)},split=test")) == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"offsets": np.array([0, 10, 5, 20])}, "do not fit together"),
        ({"offsets": np.array([0, 10])}, "do not fit together"),
        ({"labels": None}, "without `labels`"),
        ({"labels": np.array([0, 1])}, "2 labels for 3 images"),
        ({"is_val": np.array([True, True])}, "for 3 pictures"),
        ({"is_val": np.array([True, True, True])}, "marks no picture for training"),
        ({"patient": np.array([1, 2])}, "for 3 images"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, changed: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message) as caught:
        npz(pack(tmp_path, **changed), split="train", group="patient")
    assert caught.value.hint


def test_a_damaged_picture_is_named_by_its_place(tmp_path: Path):
    good, bad = _jpeg(8, 8, 0), b"no picture at all"
    content = np.frombuffer(good + bad + good, dtype=np.uint8)
    offsets = np.array([0, len(good), len(good) + len(bad), len(content)])
    with pytest.raises(InputError, match="picture 1,"):
        npz(pack(tmp_path, jpeg=content, offsets=offsets))


def test_only_one_or_three_channels(tmp_path: Path):
    with pytest.raises(UsageError, match="2 channels"):
        npz(pack(tmp_path), channels=2)


@pytest.mark.shared
def test_real_packs_are_read(shared: Path):
    assert DATASETS.build(f"npz:path={shared}/data/tiny_imagenet_20c.npz,split=test,size=32").shape == (3, 32, 32)
    assert len(DATASETS.build(f"npz:path={shared}/data/imagenet_sample_224.npz,size=64").classes) == 300
