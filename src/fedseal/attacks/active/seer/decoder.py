"""SEER's secret decoder: a linear disaggregator d without bias, and a linear reconstructor r of images."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Decoder(nn.Module):
    """Maps gradient entries [..., n] to images [..., C, H, W]; r(d(0)) is its bias, the image of nothing.

    Args:
        entries: n.
        shape: C, H, W.
        rank: width between d and r; 0 fuses the two into one linear map ("nomid", the authors' default).
        scale: by which entries are multiplied first, so that an isolated sample's have unit size at the start.
    """

    def __init__(self, entries: int, shape: tuple[int, int, int], rank: int = 0, scale: float = 1.0) -> None:
        super().__init__()
        self.shape = shape
        self.register_buffer("scale", torch.tensor(scale))
        pixels = shape[0] * shape[1] * shape[2]
        self.disaggregator: nn.Module = nn.Linear(entries, rank, bias=False) if rank else nn.Identity()
        self.reconstructor = nn.Linear(rank or entries, pixels)

    def forward(self, entries: Tensor) -> Tensor:
        """Return images, not cut to [0, 1]."""
        scale = self.get_buffer("scale")
        images: Tensor = self.reconstructor(self.disaggregator(entries * scale))
        return images.view(*images.shape[:-1], *self.shape)

    @property
    def empty(self) -> Tensor:
        """The image of a zero gradient, [C, H, W]."""
        return self.reconstructor.bias.view(self.shape)

    @torch.no_grad()
    def start(self, image: Tensor, shrink: float) -> None:
        """Begin at a constant `image` [C, H, W], with weights made smaller by `shrink`."""
        self.reconstructor.weight.mul_(shrink)
        self.reconstructor.bias.copy_(image.flatten())
