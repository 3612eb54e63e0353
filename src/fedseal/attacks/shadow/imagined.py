"""Pictures made up by an attacker who has none: noise with the spectrum of photographs, amplitudes falling as 1 / f.

They look like clouds. Natural images share that spectrum (Field 1987), and networks can be taught on such noise in
their stead (Baradad et al., NeurIPS 2021), so an attacker can rehearse with them what it would do with public images.
"""

from __future__ import annotations

import torch

from fedseal.core.batch import Batch
from fedseal.core.seeds import generator

_CONTRAST = 0.22
_COLOUR = 0.3
"""Standard deviations of brightness, and of what channels differ by as a share of it."""


def imagined(shape: tuple[int, int, int], classes: int, count: int, seed: int) -> Batch:
    """Return `count` made-up images of `shape` in [0, 1] with labels drawn at random; the same for the same seed.

    Args:
        shape: C, H, W.
        classes: to draw labels from.
        count: of images.
        seed: of what is drawn.
    """
    channels, height, width = shape
    source = generator(seed, "imagined")
    rows = torch.fft.fftfreq(height)[:, None]
    columns = torch.fft.rfftfreq(width)[None]
    frequency = (rows.square() + columns.square()).sqrt()
    falling = torch.where(frequency > 0, 1 / frequency.clamp(min=1e-9), 0.0)
    white = torch.randn(count, channels + 1, height, width, generator=source)
    clouds = torch.fft.irfft2(torch.fft.rfft2(white) * falling, s=(height, width))
    clouds = clouds / clouds.std((2, 3), keepdim=True).clamp(min=1e-9)
    level = 0.35 + 0.3 * torch.rand(count, 1, 1, 1, generator=source)
    tint = _COLOUR if channels > 1 else 0.0
    images = level + _CONTRAST * (clouds[:, :1] + tint * clouds[:, 1:])
    return Batch(images.clamp(0, 1), torch.randint(classes, (count,), generator=source))
