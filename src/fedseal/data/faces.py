"""`faces`: 100 small grey faces and 100 pictures without one, from scikit-image; recognisable pictures."""

from __future__ import annotations

import numpy as np
import torch

from fedseal.core.errors import InputError
from fedseal.core.registry import Info
from fedseal.data.bundled import bundled_file
from fedseal.data.dataset import ImageDataset
from fedseal.data.images import check_size, measure, resize
from fedseal.data.registry import DATASETS

_PER_CLASS = 100


@DATASETS.register(
    "faces",
    Info(
        summary="100 faces and 100 other crops, grey, scaled to size 32 or 64; inside scikit-image",
        paper="Huang et al., Labeled Faces in the Wild, 2007",
    ),
)
def faces(size: int = 32) -> ImageDataset:
    """Return images [200, 1, size, size] of classes `face` and `other`, the 100 faces first.

    Args:
        size: side in pixels, 32 or 64 as a rule; the originals have 25 and are scaled bicubically, so they
            hold less detail than their size suggests.
    """
    check_size(size)
    path = bundled_file("skimage", "data/lfw_subset.npy", wanted_by="faces", install="pip install scikit-image")
    values = np.load(path, allow_pickle=False)
    if values.shape != (2 * _PER_CLASS, 25, 25):
        raise InputError(
            f"{path} holds an array {list(values.shape)}, not 200 pictures of 25 x 25.",
            hint="Run `pip install --upgrade scikit-image`.",
        )
    images = resize(np.rint(values * 255).clip(0, 255).astype(np.uint8)[:, None], size)
    labels = torch.arange(2).repeat_interleave(_PER_CLASS)
    return ImageDataset("faces", torch.from_numpy(images), labels, ("face", "other"), measure(images))
