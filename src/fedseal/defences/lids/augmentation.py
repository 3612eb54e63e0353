"""The seven photometric edits LIDS gives its synthetic images in turn, each drawn once per image
(docs/methods/lids.md).

Edit number j mod 7 for the j-th synthetic image of a group, in the order in which the authors' code applies each
edit's parts. Saturation and hue leave grey images as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

Operation: TypeAlias = Literal["contrast", "brightness", "saturation", "hue", "blur", "sharpness"]

EDITS: tuple[tuple[tuple[Operation, float, float], ...], ...] = (
    (("contrast", 1.5, 2.0),),
    (("brightness", 1.1, 1.3), ("contrast", 1.3, 1.5)),
    (("contrast", 1.3, 1.5), ("saturation", 1.4, 1.6), ("brightness", 0.8, 1.1)),
    (("hue", 0.03, 0.08), ("contrast", 1.1, 1.3)),
    (("blur", 1.0, 1.0), ("saturation", 1.3, 1.6)),
    (("blur", 1.0, 1.0), ("sharpness", 1.5, 2.2)),
    (("contrast", 1.1, 1.3), ("hue", -0.07, 0.07)),
)
"""Operations of each edit with the range of their factor (a shift, for hue)."""

LEAST_HUE = 0.03
"""The last edit turns the hue by this much or more, either way."""

_LUMA = (0.299, 0.587, 0.114)


def augment(images: Tensor, edit: int, source: torch.Generator) -> Tensor:
    """Return images [N, C, H, W] in [0, 1] under edit number `edit` mod 7, factors drawn for each image."""
    for operation, low, high in EDITS[edit % len(EDITS)]:
        draw = torch.rand(len(images), 1, 1, 1, generator=source, device=source.device).to(images)
        factors = low + (high - low) * draw
        if operation == "hue" and low < 0:
            factors = factors.sign() * (LEAST_HUE + (high - LEAST_HUE) * factors.abs() / high)
        images = OPERATIONS[operation](images, factors).clamp(0, 1)
    return images


def grey(images: Tensor) -> Tensor:
    """Return the luma [N, 1, H, W] of images."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    return (images * images.new_tensor(_LUMA).view(3, 1, 1)).sum(1, keepdim=True)


def brightness(images: Tensor, factors: Tensor) -> Tensor:
    """Multiply pixels by factors [N, 1, 1, 1]."""
    return images * factors


def contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Stretch pixels away from the image's mean luma."""
    middle = grey(images).mean((1, 2, 3), keepdim=True)
    return middle + factors * (images - middle)


def saturation(images: Tensor, factors: Tensor) -> Tensor:
    """Stretch colours away from each pixel's luma."""
    middle = grey(images)
    return middle + factors * (images - middle) if images.shape[1] == 3 else images


def blur(images: Tensor, factors: Tensor) -> Tensor:
    """Average over a 3x3 Gaussian window of deviation 0.8, pixels beyond the edge mirrored."""
    offsets = torch.arange(-1, 2, dtype=images.dtype, device=images.device)
    line = torch.exp(-0.5 * (offsets / 0.8) ** 2)
    line = line / line.sum()
    window = (line[:, None] * line[None]).expand(images.shape[1], 1, 3, 3)
    return F.conv2d(F.pad(images, (1, 1, 1, 1), mode="reflect"), window, groups=images.shape[1])


def sharpness(images: Tensor, factors: Tensor) -> Tensor:
    """Stretch pixels away from the blurred image."""
    smooth = blur(images, factors)
    return smooth + factors * (images - smooth)


def hue(images: Tensor, shifts: Tensor) -> Tensor:
    """Turn the hue by shifts [N, 1, 1, 1], of a full circle of 1."""
    if images.shape[1] != 3:
        return images
    high, low = images.amax(1), images.amin(1)
    spread = high - low
    safe = spread.where(spread > 0, 1.0)
    red, green, blue = images.unbind(1)
    turn = torch.where(
        high == red,
        (green - blue) / safe,
        torch.where(high == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    turned = 6 * ((turn / 6 + shifts[:, 0]) % 1)
    channels = []
    for offset in (5, 3, 1):  # HSV to RGB: value - spread * max(0, min(k, 4 - k, 1)) with k = (n + 6 hue) mod 6
        k = (offset + turned) % 6
        channels.append(high - spread * torch.minimum(torch.minimum(k, 4 - k), torch.ones_like(k)).clamp(min=0))
    return torch.stack(channels, 1)


OPERATIONS: dict[Operation, Callable[[Tensor, Tensor], Tensor]] = {
    "contrast": contrast,
    "brightness": brightness,
    "saturation": saturation,
    "hue": hue,
    "blur": blur,
    "sharpness": sharpness,
}
