"""`photos`: colour crops of the photographs inside scikit-image, each photograph a class.

Crops overlap, so a random public part shows the attacker pieces of private pictures: fine for seeing what
leaks, wrong for judging an attack that uses public data. Use `groceries` or `cifar10` for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedseal.core.registry import Info
from fedseal.data.bundled import bundled_file
from fedseal.data.dataset import ImageDataset
from fedseal.data.images import Pixels, check_size, measure, square
from fedseal.data.registry import DATASETS

if TYPE_CHECKING:
    from PIL import Image

PHOTOGRAPHS = {
    "astronaut": "astronaut.png",
    "cat": "chelsea.png",
    "coffee": "coffee.png",
    "motorcycle": "motorcycle_left.png",
    "retina": "retina.jpg",
    "rocket": "rocket.jpg",
    "tissue": "ihc.png",
}
"""Class name to file, all in the wheel of scikit-image; its deep field is left out, nearly black at this size."""

CROPS_PER_CLASS = 40
FLAT = 15.0
"""A crop is left out if the bytes of its channels, at 32 pixels, deviate less than this: it shows nothing."""

_SHARES = (1.0, 0.85, 0.7, 0.6, 0.5, 0.4, 0.3)
_STEPS = 3


@DATASETS.register(
    "photos",
    Info(summary="280 colour crops of 7 photographs (cat, coffee, ...), size 32 or 64; inside scikit-image"),
)
def photos(size: int = 32) -> ImageDataset:
    """Return images [280, 3, size, size], 40 crops of each photograph, the largest first; not random."""
    images = _read(check_size(size))
    labels = torch.arange(len(PHOTOGRAPHS)).repeat_interleave(CROPS_PER_CLASS)
    return ImageDataset("photos", torch.from_numpy(images.copy()), labels, tuple(PHOTOGRAPHS), measure(images))


@lru_cache(maxsize=2)
def _read(size: int) -> Pixels:
    from PIL import Image

    crops: list[Pixels] = []
    for name in PHOTOGRAPHS.values():
        path = bundled_file("skimage", f"data/{name}", wanted_by="photos", install="pip install scikit-image")
        with Image.open(path) as photograph:
            visible = (crop for crop in _crops(photograph.convert("RGB")) if not _is_flat(crop))
            crops.extend(square(crop, size, channels=3) for crop in islice(visible, CROPS_PER_CLASS))
    return np.stack(crops)


def _crops(photograph: Image.Image) -> Iterator[Image.Image]:
    """Yield square crops, large shares of the shorter side first, each on a grid of three by three."""
    for share in _SHARES:
        side = round(min(photograph.size) * share)
        for top in _positions(photograph.height - side):
            for left in _positions(photograph.width - side):
                yield photograph.crop((left, top, left + side, top + side))


def _is_flat(crop: Image.Image) -> bool:
    return float(square(crop, 32, channels=3).std(axis=(1, 2)).mean()) < FLAT


def _positions(room: int) -> list[int]:
    return sorted({round(room * step / (_STEPS - 1)) for step in range(_STEPS)})
