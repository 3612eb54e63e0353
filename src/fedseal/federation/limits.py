"""How far one reply may move the global model: bounds on its size and weight, absolute and beside the others'."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from fedseal.core.errors import InputError, UsageError
from fedseal.core.tensors import Tensors

_PLAUSIBLE_EXAMPLES = 1e12
OUTLIER = 5.0
_FEWEST = 3
"""Replies a median is taken of."""


@dataclass(frozen=True)
class Limits:
    """What a guard lets pass.

    Attributes:
        max_norm: largest L2 norm of a weight change; None allows ten times the model's own norm, or ten per square
            root of weight if that is more.
        max_examples: largest number of examples a client may be weighted by; None cuts at `outlier` squared times the
            round's median.
        outlier: a change this many times larger than the round's median is scaled down to that and its sender
            reported; None leaves such changes alone.
    """

    max_norm: float | None = None
    max_examples: float | None = None
    outlier: float | None = OUTLIER

    def __post_init__(self) -> None:
        for name, value, least in (
            ("max_norm", self.max_norm, 0.0),
            ("max_examples", self.max_examples, 0.0),
            ("outlier", self.outlier, 1.0),
        ):
            if value is not None and not least < value < math.inf:
                raise UsageError(f"guard needs {name} > {least:g}, got {value}.", hint="None takes the default.")

    def bound(self, before: Tensors) -> float:
        """Return the largest change that is taken, for a model at these weights."""
        if self.max_norm is not None:
            return self.max_norm
        weights = {name: tensor for name, tensor in before.items() if tensor.is_floating_point()}
        count = sum(tensor.numel() for tensor in weights.values())
        return 10 * max(norm_of(weights), math.sqrt(count))

    def check(self, size: float, bound: float, examples: float) -> None:
        """Refuse a reply that is beyond the absolute bounds."""
        if not size <= bound:
            raise InputError(f"its update has the norm {size:.4g}, at most {bound:.4g} is taken.")
        most = self.max_examples or _PLAUSIBLE_EXAMPLES
        if not examples <= most:
            raise InputError(f"it claims {examples:.4g} examples, at most {most:.4g} are believed.")

    def norm_cap(self, sizes: Sequence[float]) -> float:
        """Return to which norm the round's changes are scaled down; infinite where too few answered."""
        if self.outlier is None or len(sizes) < _FEWEST or median(sizes) == 0:
            return math.inf
        return self.outlier * median(sizes)

    def weight_cap(self, weights: Sequence[float]) -> float:
        """Return to which number of examples the round's clients are cut; infinite where too few answered."""
        if self.outlier is None or self.max_examples is not None or len(weights) < _FEWEST:
            return math.inf
        return self.outlier**2 * median(weights)


def norm_of(tensors: Mapping[str, Tensor]) -> float:
    """Return the L2 norm of all tensors together."""
    return math.hypot(*(_norm(tensor.detach()) for tensor in tensors.values()))


def _norm(tensor: Tensor) -> float:
    """Return a tensor's norm, in double precision only where need be: hostile clients send what overflows single."""
    if tensor.dtype == torch.float32:
        norm = float(torch.linalg.vector_norm(tensor))
        if math.isfinite(norm) and norm > 1e-12:  # below, squares may have vanished
            return norm
    return float(torch.linalg.vector_norm(tensor.double()))
