"""Blurring and pixelating the images a client trains on.

Threat model: passive server. The gradient still leaks the processed image exactly; what is protected is only what the
processing removed, so reconstructions are scored against both. `sigma=0` and `block=1` are the identity.

Cost: a filter per image, before training.

Known breaks: none is needed: the processed image leaks as any other would, and what blurring leaves can be sharpened by
learned priors.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from fedseal.core.batch import Batch
from fedseal.core.defence import DEFENCES, AttackerView, Defence, RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.registry import Info


def gaussian_blur(images: Tensor, sigma: float) -> Tensor:
    """Blur images [B, C, H, W] with a Gaussian of `sigma` pixels, cut at 3 sigma, edges repeated."""
    radius = math.ceil(3 * sigma)
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float64)
    line = torch.exp(-offsets.square() / (2 * sigma**2))
    kernel = (line / line.sum()).to(images).view(1, 1, -1)
    flat = images.flatten(0, 1).unsqueeze(1)
    padded = F.pad(flat, (radius,) * 4, mode="replicate")
    blurred = F.conv2d(F.conv2d(padded, kernel.unsqueeze(2)), kernel.unsqueeze(3))
    return blurred.view_as(images).clamp(0, 1)


def block_means(images: Tensor, block: int) -> Tensor:
    """Replace each block x block square of images [B, C, H, W] by its mean; squares at the far edges may be smaller."""
    height, width = images.shape[2:]
    coarse = F.avg_pool2d(images, block, ceil_mode=True)
    tiles = coarse.repeat_interleave(block, 2).repeat_interleave(block, 3)
    return tiles[:, :, :height, :width].clamp(0, 1)


@DEFENCES.register("blur", Info("blur the images before training", paper="Hill et al., PoPETs 2016", threat="passive"))
class Blur(Defence):
    """Gaussian blur of every image.

    Args:
        sigma: deviation of the Gaussian in pixels.
    """

    stage = "data"

    def __init__(self, sigma: float = 1.0) -> None:
        if not 0 <= sigma < math.inf:
            raise UsageError(f"blur needs a finite sigma >= 0, got {sigma:g}.", hint="It is measured in pixels.")
        self.sigma = sigma

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        """Blur the batch."""
        return batch if self.sigma == 0 else Batch(gaussian_blur(batch.images, self.sigma), batch.labels)

    def attacker_view(self) -> AttackerView:
        """Publish the strength."""
        return AttackerView(self.name, {"sigma": self.sigma})


@DEFENCES.register(
    "pixelate",
    Info("replace blocks of pixels by their mean before training", paper="Hill et al., PoPETs 2016", threat="passive"),
)
class Pixelate(Defence):
    """Block means of every image.

    Args:
        block: side of a block in pixels.
    """

    stage = "data"

    def __init__(self, block: int = 4) -> None:
        if block < 1:
            raise UsageError(f"pixelate needs block >= 1, got {block}.", hint="It is the side of a block in pixels.")
        self.block = block

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        """Pixelate the batch."""
        return batch if self.block == 1 else Batch(block_means(batch.images, self.block), batch.labels)

    def attacker_view(self) -> AttackerView:
        """Publish the strength."""
        return AttackerView(self.name, {"block": self.block})
