"""`faces`: 100 small grey faces from scikit-image; recognisable pictures. `textures`: as many crops without one."""

from __future__ import annotations

import numpy as np
import torch

from fedseal.core.errors import InputError
from fedseal.core.registry import Info
from fedseal.data.bundled import bundled_file
from fedseal.data.dataset import ImageDataset
from fedseal.data.images import check_size, measure, resize
from fedseal.data.registry import DATASETS

_COUNT = 100
_MIDDLE = 12
"""Column in the middle of the 25."""


@DATASETS.register(
    "faces",
    Info(
        summary="100 faces, grey, lit from the left or the right, scaled to size 32 or 64; inside scikit-image",
        paper="Huang et al., Labeled Faces in the Wild, 2007",
    ),
)
def faces(size: int = 32) -> ImageDataset:
    """Return images [100, 1, size, size] of classes `lit from the left` and `lit from the right`.

    The pictures carry no names, so the label is what a picture itself tells: the half that is brighter.

    Args:
        size: side in pixels, 32 or 64 as a rule; the originals have 25 and are scaled bicubically, so they
            hold less detail than their size suggests.
    """
    return _half("faces", slice(None, _COUNT), size)


@DATASETS.register(
    "textures",
    Info(
        summary="100 crops without a face, grey, scaled to size 32 or 64; inside scikit-image",
        paper="Huang et al., Labeled Faces in the Wild, 2007",
    ),
)
def textures(size: int = 32) -> ImageDataset:
    """Return images [100, 1, size, size] cut from beside the faces, with the same two classes.

    Args:
        size: side in pixels; the originals have 25.
    """
    return _half("textures", slice(_COUNT, None), size)


def _half(name: str, part: slice, size: int) -> ImageDataset:
    """Return the faces or what is none."""
    check_size(size)
    path = bundled_file("skimage", "data/lfw_subset.npy", wanted_by=name, install="pip install scikit-image")
    values = np.load(path, allow_pickle=False)
    if values.shape != (2 * _COUNT, 25, 25):
        raise InputError(
            f"{path} holds an array {list(values.shape)}, not 200 pictures of 25 x 25.",
            hint="Run `pip install --upgrade scikit-image`.",
        )
    chosen = values[part]
    images = resize(np.rint(chosen * 255).clip(0, 255).astype(np.uint8)[:, None], size)
    right = chosen[:, :, _MIDDLE + 1 :].mean((1, 2)) > chosen[:, :, :_MIDDLE].mean((1, 2))
    classes = ("lit from the left", "lit from the right")
    return ImageDataset(name, torch.from_numpy(images), torch.from_numpy(right).long(), classes, measure(images))
