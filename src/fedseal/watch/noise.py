"""More noise on an update about to leave, where a watch calls for it; what is not sent gets none.

Noise on what a defence has finished is post-processing: no guarantee is lost by it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedseal.core.tensors import Tensors, flatten
from fedseal.defences.pipeline import build_defence

FIRST = 0.1
"""Where a defence adds none, the first noise has this share of the update's root mean square."""


def raised(spec: str, update: Tensors, extra: float, factor: float) -> float:
    """Return the deviation to add on top, so that all noise together is `factor` times what it was.

    Args:
        spec: of the defence that sealed the update.
        update: as it would leave.
        extra: deviation that is added already.
        factor: more than 1.
    """
    law = build_defence(spec).attacker_view().noise
    own = 0.0 if law is None else law.variance
    present = own + extra**2
    if present == 0:
        sent = flatten(update)
        sent = sent[sent != 0]
        return factor * FIRST * float(sent.square().mean().sqrt()) if len(sent) else 0.0
    return math.sqrt(factor**2 * present - own)


def noisier(update: Tensors, deviation: float, source: torch.Generator) -> dict[str, Tensor]:
    """Return an update with Gaussian noise on every entry that is not zero."""
    return {
        name: torch.where(
            tensor != 0, tensor + deviation * torch.randn(tensor.shape, generator=source, dtype=tensor.dtype), tensor
        )
        for name, tensor in update.items()
    }
