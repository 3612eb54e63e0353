"""How a reconstruction came about: a few pictures on the way, small enough to keep of every trial."""

from __future__ import annotations

import torch
from torch import Tensor

FRAMES = 12
"""Pictures kept of each image at most, evenly spaced over the attack."""
_BYTES = 400_000
"""What a trial's film may take; of larger images fewer pictures are kept, of very large ones none."""


class Film:
    """Takes pictures while targets are attacked together, as bytes: a film is to be looked at, not measured."""

    def __init__(self) -> None:
        self._frames: list[Tensor] = []
        self._times: list[float] = []

    def take(self, done: float, images: Tensor) -> None:
        """Keep the images [targets, images, C, H, W] of a moment, unless one was kept just before.

        Args:
            done: finished fraction of the attack.
            images: as they stand, of all targets.
        """
        due = not self._times or done + 1e-6 >= self._times[-1] + 1 / FRAMES or done >= 1 > self._times[-1]
        if due and images.ndim == 5 and len(self._frames) <= FRAMES:
            shown = images.detach().nan_to_num(0.0).clamp(0, 1).mul(255).round()
            self._frames.append(shown.to("cpu", torch.uint8))
            self._times.append(min(1.0, done))

    def of(self, target: int, rebuilt: Tensor, matched: Tensor) -> dict[str, Tensor]:
        """Return one target's film as tensors to keep: `film` [F, B, C, H, W] and `film.at` [F]; nothing if too large.

        Args:
            target: place in the group that was attacked.
            rebuilt: its images [B, C, H, W] in the attack's own order, which is that of the frames.
            matched: the same in the order of the originals.
        """
        if not rebuilt.is_floating_point():
            return {}
        rebuilt = rebuilt.float()
        same = [one for one in self._frames if target < len(one) and one.shape[1:] == rebuilt.shape]
        if len(same) < 2 or len(same) != len(self._frames):
            return {}
        every = max(1, -(-len(same) * rebuilt.numel() // _BYTES))
        kept = range(len(same) - 1, -1, -every)
        if len(kept) < 2:
            return {}
        flat = rebuilt.clamp(0, 1).flatten(1)
        order = [int((flat - one.flatten()).square().sum(1).argmin()) for one in matched]
        places = sorted(kept)
        film = torch.stack([same[place][target][order] for place in places])
        return {"film": film, "film.at": torch.tensor([self._times[place] for place in places])}
