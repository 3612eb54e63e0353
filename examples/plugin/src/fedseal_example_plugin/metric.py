"""How far edges are from where they were."""

from __future__ import annotations

from torch import Tensor


def edges(originals: Tensor, reconstructions: Tensor) -> Tensor:
    """Mean absolute difference of the images' horizontal and vertical differences."""
    apart = originals - reconstructions
    across, down = apart.diff(dim=-1).abs(), apart.diff(dim=-2).abs()
    return (across.mean(dim=(1, 2, 3)) + down.mean(dim=(1, 2, 3))) / 2
