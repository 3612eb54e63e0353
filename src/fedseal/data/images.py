"""Pixels: pictures to arrays, resizing, and the statistics of a set. Images are uint8 [N, C, H, W]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from fedseal.core.batch import Normalisation
from fedseal.core.errors import InputError, UsageError

if TYPE_CHECKING:
    from PIL import Image

Pixels = NDArray[np.uint8]

SMALLEST, LARGEST = 8, 256


def check_size(size: int) -> int:
    """Return `size` if images may have that side, else refuse it."""
    if not SMALLEST <= size <= LARGEST:
        raise UsageError(
            f"images of {size} x {size} pixels are not supported.",
            hint=f"Choose a size from {SMALLEST} to {LARGEST}; 32 and 64 are usual.",
        )
    return size


def square(image: Image.Image, size: int, channels: int) -> Pixels:
    """Return the largest centred square of a picture, resized to [channels, size, size].

    Bicubic with Pillow's antialiasing, so shrinking does not alias. Sixteen-bit grey is scaled to eight bits
    (Pillow itself would clip it); a picture of floats has no defined range and is refused.
    """
    from PIL import Image

    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    cropped = _eight_bits(image).crop((left, top, left + side, top + side))
    resized = cropped.convert("L" if channels == 1 else "RGB").resize((size, size), Image.Resampling.BICUBIC)
    return as_pixels(resized, channels)


def as_pixels(image: Image.Image, channels: int) -> Pixels:
    """Return a picture as it is, uint8 [channels, H, W]."""
    pixels = np.asarray(_eight_bits(image).convert("L" if channels == 1 else "RGB"), dtype=np.uint8)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _eight_bits(image: Image.Image) -> Image.Image:
    from PIL import Image

    if image.mode == "F":
        raise InputError("floating-point pixels have no defined range.", hint="Save it with 8 or 16 bits.")
    if not image.mode.startswith("I"):
        return image
    values = np.asarray(image).astype(np.int64)
    if values.size and (values.min() < 0 or values.max() > 0xFFFF):
        raise InputError("pixels of more than 16 bits are not supported.", hint="Save it with 8 or 16 bits.")
    return Image.fromarray(((values + 128) // 257).astype(np.uint8), "L")


def resize(images: Pixels, size: int) -> Pixels:
    """Resize square images [N, C, H, H] to [N, C, size, size]; the same array when they have that size."""
    from PIL import Image

    check_size(size)
    if images.shape[-2:] == (size, size):
        return images
    return np.stack([square(Image.fromarray(hwc(image)), size, images.shape[1]) for image in images])


def hwc(image: Pixels) -> Pixels:
    """Return an image [C, H, W] as Pillow wants it: [H, W] for one channel, else [H, W, C]."""
    return image[0] if image.shape[0] == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))


class Histogram:
    """Counts of byte values for each channel, of which statistics do not depend on the order of summation."""

    def __init__(self, channels: int) -> None:
        self._counts = np.zeros((channels, 256), dtype=np.int64)

    def add(self, images: Pixels) -> None:
        """Count images [N, C, H, W]."""
        for channel, counts in enumerate(self._counts):
            counts += np.bincount(images[:, channel].ravel(), minlength=256)

    def normalisation(self) -> Normalisation:
        """Return mean and standard deviation per channel, in units of [0, 1]."""
        levels = torch.arange(256, dtype=torch.float64) / 255
        means, deviations = [], []
        for counted in torch.from_numpy(self._counts).to(torch.float64):
            share = counted / counted.sum()
            mean = float((share * levels).sum())
            means.append(round(mean, 4))
            deviations.append(round(max(float((share * (levels - mean) ** 2).sum()) ** 0.5, 1e-4), 4))
        return Normalisation(tuple(means), tuple(deviations))


def measure(images: Pixels) -> Normalisation:
    """Return mean and standard deviation per channel of images [N, C, H, W], in units of [0, 1]."""
    seen = Histogram(images.shape[1])
    seen.add(images)
    return seen.normalisation()
