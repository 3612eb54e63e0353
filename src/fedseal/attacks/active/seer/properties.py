"""The properties by which SEER isolates an image: scores of which a batch has one largest (docs/methods/seer.md).

`bright` and `dark` are plus and minus the mean pixel; `red`, `green` and `blue` the mean of twice that channel less the
others; `hedge` and `vedge` the mean difference of grey rows, or columns, that follow each other, which telescopes to
(last - first) / (H - 1); `rand_conv` the mean response of one fixed 3x3 kernel that sums to zero.
"""

from __future__ import annotations

import typing
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from fedseal.core.errors import InputError, UsageError
from fedseal.core.seeds import generator

Property: TypeAlias = Literal["bright", "dark", "red", "green", "blue", "hedge", "vedge", "rand_conv"]
PROPERTIES: tuple[Property, ...] = typing.get_args(Property)
SHIFTABLE: tuple[Property, ...] = ("bright", "dark", "red")
"""Properties that `shift` can change, as in the authors' code; only these can have a threshold."""

_CHANNELS: dict[Property, int] = {"red": 0, "green": 1, "blue": 2}
_KERNEL_SEED = 0


def property_scores(images: Tensor, kind: Property) -> Tensor:
    """Return the score [...] of images [..., C, H, W]; the attack isolates the image with the largest."""
    if kind in ("bright", "dark"):
        mean = images.mean((-3, -2, -1))
        return mean if kind == "bright" else -mean
    if kind in _CHANNELS:
        if images.shape[-3] != 3:
            raise InputError(
                f"the property {kind!r} needs colour images, these have {images.shape[-3]} channel(s).",
                hint="Use bright, dark, hedge, vedge or rand_conv.",
            )
        means = images.mean((-2, -1))
        return 3 * means[..., _CHANNELS[kind]] - means.sum(-1)
    if kind in ("hedge", "vedge"):
        grey = images.mean(-3)
        return grey.diff(dim=-2 if kind == "hedge" else -1).mean((-2, -1))
    flat = images.reshape(-1, *images.shape[-3:])
    return F.conv2d(flat, random_kernel(flat)).mean((-3, -2, -1)).reshape(images.shape[:-3])


def random_kernel(like: Tensor) -> Tensor:
    """Return the one kernel [1, C, 3, 3] of `rand_conv` for images [..., C, H, W]; it sums to zero."""
    kernel = torch.randn(1, like.shape[-3], 3, 3, generator=generator(_KERNEL_SEED, "rand-conv"), dtype=torch.float64)
    return (kernel - kernel.mean()).to(like)


def check_shiftable(kind: Property) -> None:
    """Refuse a threshold on a property that images cannot be shifted in."""
    if kind not in SHIFTABLE:
        raise UsageError(
            f"SEER with a threshold is defined for {', '.join(SHIFTABLE)}, not for {kind!r}.",
            hint="Use `mode=max`, which serves a single client, or one of those properties.",
        )


def shift(images: Tensor, amount: Tensor, kind: Property) -> Tensor:
    """Change the score of images [M, B, C, H, W] by `amount` [M], less where pixels are cut to [0, 1]."""
    check_shiftable(kind)
    size = amount.view(-1, 1, 1, 1, 1)
    if kind == "red":  # +2/6 on red and -1/6 on the others change 2R - G - B by 1 and leave the mean as it is
        direction = images.new_tensor([2.0, -1.0, -1.0]).view(3, 1, 1) / 6
        return (images + size * direction).clamp(0, 1)
    return (images + (size if kind == "bright" else -size)).clamp(0, 1)


def best_threshold(scores: Tensor, clients: int) -> float:
    """Return the threshold that one image of one client, and none of the others, passes most often.

    With F1 and F2 the distributions of the largest and second largest score of a batch it maximises
    (1 - F1) F2 F1^(n - 1) over the values seen.

    Args:
        scores: of the images of many batches, [M, B].
        clients: n, whose sum the server sees.
    """
    first, second = scores.topk(2, dim=1).values.T.contiguous()
    candidates = torch.cat([first, second]).sort().values
    below_first = torch.searchsorted(first.sort().values, candidates, right=True) / len(first)
    below_second = torch.searchsorted(second.sort().values, candidates, right=True) / len(second)
    return float(candidates[((1 - below_first) * below_second * below_first ** (clients - 1)).argmax()])
