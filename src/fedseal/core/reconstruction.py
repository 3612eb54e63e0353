"""What an attack returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Reconstruction:
    """Images an attacker claims were in the batch.

    Example:
        >>> import torch, fedseal
        >>> claim = fedseal.Reconstruction(torch.rand(1, 1, 8, 8), torch.tensor([3]), objective=0.01)
        >>> claim.labels.tolist()
        [3]

    Attributes:
        images: [B, C, H, W] in [0, 1].
        labels: the labels the attack worked with, [B].
        objective: the attacker's own objective at the end, the number restarts are chosen by.
        trace: the objective over iterations, as (iteration, value) pairs.
        seconds: wall time of this reconstruction; its share, when several ran as one batch.
        isolated: how many images the attack isolated, the first ones; the others only fill up the batch and are not
            scored. None if it answers for the whole batch.
        places: where in the batch the isolated ones are, if the attack's construction says so; empty if anywhere.
        likenesses: what the attacker would hold beside a line-up, [K, C, H, W] in any order, where that is not its
            images: the picture closest to the original is often not the one that points at it. None if it is.
        notes: anything uncertain the attack wants said (ambiguous labels, discarded restarts).
    """

    images: Tensor
    labels: Tensor
    objective: float
    trace: tuple[tuple[int, float], ...] = ()
    seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())
    isolated: int | None = None
    places: tuple[int, ...] = ()
    likenesses: Tensor | None = None
