"""Checks shared by the image metrics: a wrong input is refused with its reason, never scored."""

from __future__ import annotations

import torch
from torch import Tensor

from fedseal.core.errors import InputError

RANGE_TOLERANCE = 1e-4
"""How far outside [0, 1] an image may lie before it is taken for one on another scale."""


def check_images(images: Tensor, what: str) -> None:
    """Refuse anything but a non-empty floating point [B, C, H, W] of finite values."""
    if images.ndim != 4 or images.numel() == 0:
        raise InputError(
            f"{what}: need images [B, C, H, W] with at least one value, got shape {list(images.shape)}.",
            hint="Add the missing dimension, e.g. images.unsqueeze(0).",
        )
    if not images.is_floating_point():
        raise InputError(f"{what}: images are {images.dtype}, not floating point.", hint="Divide bytes by 255 first.")
    if not all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(images)):  # one pass, NaN shows
        bad = int((~torch.isfinite(images)).sum())
        raise InputError(
            f"{what}: {bad} of {images.numel()} pixel values are NaN or infinite.",
            hint="The attack that made them diverged: lower its learning rate.",
        )


def check_pair(a: Tensor, b: Tensor, what: str) -> None:
    """Refuse two stacks of images that cannot be compared one to one."""
    check_images(a, what)
    check_images(b, what)
    if a.shape != b.shape:
        raise InputError(
            f"{what}: images of shape {list(a.shape)} cannot be compared with {list(b.shape)}.",
            hint="Both need the same number, channels, height and width.",
        )


def check_unit_range(images: Tensor, what: str) -> None:
    """Refuse images outside [0, 1]: normalised or 0..255 images would get a score that means nothing."""
    low, high = (float(extreme) for extreme in torch.aminmax(images))
    if low < -RANGE_TOLERANCE or high > 1 + RANGE_TOLERANCE:
        raise InputError(
            f"{what}: pixel values lie in [{low:.3g}, {high:.3g}], not in [0, 1].",
            hint="Undo the normalisation, or divide bytes by 255.",
        )


def precise(tensor: Tensor) -> Tensor:
    """Return a tensor as float64, or as float32 on a device that has nothing better (Apple's MPS)."""
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)
