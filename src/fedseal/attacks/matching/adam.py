"""Adam's step for many lanes at once: plain, on signs, with decoupled weight decay."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseal.attacks.matching.evaluation import Evaluation
from fedseal.attacks.matching.steps import Ground, Moved


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015).

    Attributes:
        signed: replace the gradient by its sign, as Inverting Gradients does.
        betas: decay of the two moments.
        eps: added to the root of the second moment.
        weight_decay: decoupled, as in AdamW.
    """

    signed: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def begin(self, z: Tensor) -> AdamWalk:
        """Start with moments of zero."""
        return AdamWalk(self, z)


class AdamWalk:
    """The moments of one run.

    Args:
        options: of the step.
        z: where lanes start, [L, D].
    """

    def __init__(self, options: Adam, z: Tensor) -> None:
        self._options = options
        self._first, self._second = torch.zeros_like(z), torch.zeros_like(z)
        self._count = 0

    def move(self, z: Tensor, here: Evaluation, rate: float, ground: Ground) -> Moved:
        """Step against the gradient, each entry by its own scale."""
        options = self._options
        gradient = here.gradients.sign() if options.signed else here.gradients
        beta1, beta2 = options.betas
        self._first = self._first.lerp(gradient, 1 - beta1)
        self._second = self._second.lerp(gradient.square(), 1 - beta2)
        self._count += 1
        corrected = self._second.div(1 - beta2**self._count).sqrt_().add_(options.eps)
        if options.weight_decay:
            z = z * (1 - rate * options.weight_decay)
        return Moved(z.addcdiv(self._first, corrected, value=-rate / (1 - beta1**self._count)))

    def keep(self, indices: Tensor) -> None:
        """Forget the other lanes' moments."""
        self._first, self._second = self._first[indices], self._second[indices]
