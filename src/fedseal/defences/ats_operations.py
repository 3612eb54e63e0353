"""The image operations ATS is made of, on 8-bit tensors and with Pillow's arithmetic, bit for bit.

Images are uint8 [C, H, W] with one channel (grey) or three (RGB). Each operation takes the strength its name has on
ATS's scale of 0 to 9 and, where ATS draws a random sign, that sign. Areas that enter a moved image are black, of a
rotated one grey 128, as in the authors' code.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Operation = Callable[[Tensor, int, int], Tensor]
"""Maps an image uint8 [C, H, W], a strength 0..9 and a sign +-1 to an image of the same shape."""

_LUMA = (19595, 38470, 7471)
_ROTATION_FILL = 128


def _grid(strength: int, largest: float) -> float:
    """Return the strength on an even scale from 0 to `largest`."""
    return strength * (largest / 9)


def luminance(image: Tensor) -> Tensor:
    """Return the grey value of each pixel, [1, H, W]."""
    if image.shape[0] == 1:
        return image
    weights = torch.tensor(_LUMA, device=image.device).view(3, 1, 1)
    return ((image.long() * weights).sum(0, keepdim=True) + 0x8000 >> 16).to(torch.uint8)


def blend(degenerate: Tensor, image: Tensor, factor: float) -> Tensor:
    """Return degenerate + factor (image - degenerate) in single precision, cut off to whole numbers in 0..255."""
    if factor == 1:
        return image
    base = degenerate.float()
    return (base + factor * (image.float() - base)).clamp(0, 255).to(torch.uint8)


def _colour(image: Tensor, strength: int, sign: int) -> Tensor:
    return blend(luminance(image).expand_as(image), image, 1 + sign * _grid(strength, 0.5))


def _contrast(image: Tensor, strength: int, sign: int) -> Tensor:
    mean = int(luminance(image).double().mean() + 0.5)
    return blend(torch.full_like(image, mean), image, 1 + sign * _grid(strength, 0.5))


def _brightness(image: Tensor, strength: int, sign: int) -> Tensor:
    return blend(torch.zeros_like(image), image, 1 + sign * _grid(strength, 0.5))


def _sharpness(image: Tensor, strength: int, sign: int) -> Tensor:
    """Blend with the image smoothed by a 3x3 kernel of ones around a five; border pixels are not smoothed."""
    smooth = image.clone()
    if min(image.shape[1:]) >= 3:
        windows = image.long().unfold(1, 3, 1).unfold(2, 3, 1)
        total = windows.sum((-2, -1)) + 4 * windows[..., 1, 1]
        smooth[:, 1:-1, 1:-1] = ((2 * total + 13) // 26).to(torch.uint8)
    return blend(smooth, image, 1 + sign * _grid(strength, 0.5))


def _posterise(image: Tensor, strength: int, sign: int) -> Tensor:
    bits = round(8 - _grid(strength, 4))
    mask = torch.full_like(image, 256 - 2 ** (8 - bits))
    return torch.bitwise_and(image, mask)


def _solarise(image: Tensor, strength: int, sign: int) -> Tensor:
    return torch.where(image.double() < 256 - _grid(strength, 256), image, 255 - image)


def _invert(image: Tensor, strength: int, sign: int) -> Tensor:
    return 255 - image


def _autocontrast(image: Tensor, strength: int, sign: int) -> Tensor:
    """Stretch each channel to the whole range."""
    return torch.stack([_stretched(channel) for channel in image])


def _stretched(channel: Tensor) -> Tensor:
    low, high = int(channel.min()), int(channel.max())
    if high <= low:
        return channel
    scale = 255.0 / (high - low)
    table = torch.arange(256, dtype=torch.float64, device=channel.device) * scale - low * scale
    return table.trunc().clamp(0, 255).to(torch.uint8)[channel.long()]


def _equalise(image: Tensor, strength: int, sign: int) -> Tensor:
    """Spread each channel's grey values evenly."""
    return torch.stack([_flattened(channel) for channel in image])


def _flattened(channel: Tensor) -> Tensor:
    counts = torch.bincount(channel.flatten().long(), minlength=256)
    present = counts[counts > 0]
    step = int(present.sum() - present[-1]) // 255
    if len(present) <= 1 or step == 0:
        return channel
    before = counts.cumsum(0) - counts
    table = ((step // 2 + before) // step).clamp(max=255).to(torch.uint8)
    return table[channel.long()]


def _pick(image: Tensor, rows: Tensor, columns: Tensor, fill: int) -> Tensor:
    """Return image[:, rows, columns], `fill` where that lies outside; both indices are [H, W]."""
    height, width = image.shape[1:]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    moved = image[:, rows.clamp(0, height - 1), columns.clamp(0, width - 1)]
    return torch.where(inside, moved, torch.full_like(moved, fill))


def _pixels(image: Tensor) -> tuple[Tensor, Tensor]:
    """Return each pixel's row and column, [H, W]."""
    height, width = image.shape[1:]
    rows = torch.arange(height, device=image.device).view(-1, 1).expand(height, width)
    columns = torch.arange(width, device=image.device).view(1, -1).expand(height, width)
    return rows, columns


def _translate_x(image: Tensor, strength: int, sign: int) -> Tensor:
    rows, columns = _pixels(image)
    shift = sign * _grid(strength, 150 / 331) * image.shape[2]
    return _pick(image, rows, (columns.double() + 0.5 + shift).floor().long(), 0)


def _translate_y(image: Tensor, strength: int, sign: int) -> Tensor:
    rows, columns = _pixels(image)
    shift = sign * _grid(strength, 150 / 331) * image.shape[1]
    return _pick(image, (rows.double() + 0.5 + shift).floor().long(), columns, 0)


def _rotate(image: Tensor, strength: int, sign: int) -> Tensor:
    """Turn counter-clockwise by up to 30 degrees, nearest pixel, in Pillow's 16.16 fixed-point arithmetic."""
    if strength == 0:
        return image
    angle = -math.radians(_grid(strength, 30))
    cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
    middle_x, middle_y = image.shape[2] / 2, image.shape[1] / 2
    offset_x = -middle_x * cos - middle_y * sin + middle_x
    offset_y = middle_x * sin - middle_y * cos + middle_y
    rows, columns = _pixels(image)
    x = _fixed(offset_x + 0.5 * cos + 0.5 * sin) + columns * _fixed(cos) + rows * _fixed(sin)
    y = _fixed(offset_y - 0.5 * sin + 0.5 * cos) + columns * _fixed(-sin) + rows * _fixed(cos)
    return _pick(image, y >> 16, x >> 16, _ROTATION_FILL)


def _fixed(value: float) -> int:
    return math.floor(value * 65536 + 0.5)


def _shear_x(image: Tensor, strength: int, sign: int) -> Tensor:
    y, x = (index.double() + 0.5 for index in _pixels(image))
    return bicubic(image, y, x + sign * _grid(strength, 0.3) * y)


def _shear_y(image: Tensor, strength: int, sign: int) -> Tensor:
    y, x = (index.double() + 0.5 for index in _pixels(image))
    return bicubic(image, sign * _grid(strength, 0.3) * x + y, x)


def bicubic(image: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Interpolate at positions y, x [H, W], measured from the image's corner; outside of it the result is black."""
    height, width = image.shape[1:]
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    row, column = (y - 0.5).floor(), (x - 0.5).floor()
    along_y, along_x = y - 0.5 - row, x - 0.5 - column
    values = image.double()
    lines = []
    for offset in (-1, 0, 1, 2):
        at = (row + offset).clamp(0, height - 1).long()
        taps = [values[:, at, (column + side).clamp(0, width - 1).long()] for side in (-1, 0, 1, 2)]
        lines.append(_cubic(taps, along_x))
    result = _cubic(lines, along_y).clamp(0, 255).to(torch.uint8)
    return torch.where(inside, result, torch.zeros_like(result))


def _cubic(v: list[Tensor], d: Tensor) -> Tensor:
    """Interpolate between v[1] and v[2] at d in [0, 1], by Pillow's cubic (a = -1) and order of operations."""
    linear = -v[0] + v[2]
    quadratic = 2 * (v[0] - v[1]) + v[2] - v[3]
    cubic = -v[0] + v[1] - v[2] + v[3]
    return v[1] + d * (linear + d * (quadratic + d * cubic))


OPERATIONS: dict[str, Operation] = {
    "shearX": _shear_x,
    "shearY": _shear_y,
    "translateX": _translate_x,
    "translateY": _translate_y,
    "rotate": _rotate,
    "colour": _colour,
    "posterise": _posterise,
    "solarise": _solarise,
    "contrast": _contrast,
    "sharpness": _sharpness,
    "brightness": _brightness,
    "autocontrast": _autocontrast,
    "equalise": _equalise,
    "invert": _invert,
}

SIGNED = frozenset({"shearX", "shearY", "translateX", "translateY", "colour", "contrast", "sharpness", "brightness"})
"""Operations whose direction ATS draws at random."""

LIBRARY: tuple[tuple[str, int], ...] = (
    ("invert", 7),
    ("contrast", 6),
    ("rotate", 2),
    ("translateX", 9),
    ("sharpness", 1),
    ("sharpness", 3),
    ("shearY", 2),
    ("translateY", 2),
    ("autocontrast", 5),
    ("equalise", 2),
    ("shearY", 5),
    ("posterise", 5),
    ("colour", 3),
    ("brightness", 5),
    ("sharpness", 9),
    ("brightness", 9),
    ("equalise", 5),
    ("equalise", 1),
    ("contrast", 7),
    ("sharpness", 5),
    ("colour", 5),
    ("translateX", 5),
    ("equalise", 7),
    ("autocontrast", 8),
    ("translateY", 3),
    ("sharpness", 6),
    ("brightness", 6),
    ("colour", 8),
    ("solarise", 0),
    ("invert", 0),
    ("equalise", 0),
    ("autocontrast", 0),
    ("equalise", 8),
    ("equalise", 4),
    ("colour", 5),
    ("equalise", 5),
    ("autocontrast", 4),
    ("solarise", 4),
    ("brightness", 3),
    ("colour", 0),
    ("solarise", 1),
    ("autocontrast", 0),
    ("translateY", 3),
    ("translateY", 3),
    ("autocontrast", 1),
    ("solarise", 1),
    ("equalise", 5),
    ("invert", 0),
    ("translateY", 3),
    ("autocontrast", 1),
)
"""ATS's 50 operations with their strengths, in the order policies count them from 0."""
