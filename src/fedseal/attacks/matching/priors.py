"""What the attacker believes of images before seeing an update."""

from __future__ import annotations

from torch import Tensor


def total_variation(images: Tensor) -> Tensor:
    """Return the anisotropic total variation of [B, C, H, W]: mean |dx| + mean |dy| (Inverting Gradients)."""
    dx = (images[..., :, 1:] - images[..., :, :-1]).abs().mean()
    dy = (images[..., 1:, :] - images[..., :-1, :]).abs().mean()
    return dx + dy
