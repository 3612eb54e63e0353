"""RMSprop's step for many lanes at once, with momentum."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseal.attacks.matching.evaluation import Evaluation
from fedseal.attacks.matching.steps import Ground, Moved


@dataclass(frozen=True)
class RMSprop:
    """RMSprop (Tieleman and Hinton 2012) as PyTorch has it.

    Attributes:
        momentum: of the scaled gradients.
        alpha: decay of the mean square.
        eps: added to its root.
    """

    momentum: float = 0.99
    alpha: float = 0.99
    eps: float = 1e-8

    def begin(self, z: Tensor) -> RMSpropWalk:
        """Start with means of zero."""
        return RMSpropWalk(self, z)


class RMSpropWalk:
    """The means of one run.

    Args:
        options: of the step.
        z: where lanes start, [L, D].
    """

    def __init__(self, options: RMSprop, z: Tensor) -> None:
        self._options = options
        self._square, self._going = torch.zeros_like(z), torch.zeros_like(z)

    def move(self, z: Tensor, here: Evaluation, rate: float, ground: Ground) -> Moved:
        """Step along the momentum of gradients, each entry by its own scale."""
        options = self._options
        self._square = self._square.lerp(here.gradients.square(), 1 - options.alpha)
        scaled = here.gradients / self._square.sqrt().add_(options.eps)
        self._going = self._going.mul(options.momentum).add_(scaled)
        return Moved(z - rate * self._going)

    def keep(self, indices: Tensor) -> None:
        """Forget the other lanes' means."""
        self._square, self._going = self._square[indices], self._going[indices]
