"""The arithmetic of AdaDefense: one step of Adam, Adagrad or Yogi from a client's moments (Yi et al., 2024, Eq. 1-5).

With t the number of rounds, c1 = 1 - b1^t and c2 = 1 - b2^t, all three send scale * (m / c1) / (sqrt(v / c2) + eps),
which is scale * sqrt(c2) / c1 * m / (sqrt(v) + sqrt(c2) eps); the released code leaves sqrt(c2) before eps out, for
Adagrad and Yogi as for Adam.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedseal.core.tensors import Tensors

Variant: TypeAlias = Literal["adam", "adagrad", "yogi"]
EpsilonAt: TypeAlias = Literal["outside", "corrected", "inside"]


@dataclass(frozen=True)
class Moments:
    """What a client remembers; both are empty before its first round.

    Attributes:
        first: m by tensor name.
        second: v by tensor name.
        rounds: exponent of the last round's corrections; 0 before the first.
    """

    first: Tensors
    second: Tensors
    rounds: int


@dataclass(frozen=True)
class StandIn:
    """The rule and its public parameters; see `AdaDefense` for what they are."""

    variant: Variant = "adam"
    scale: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    eps_at: EpsilonAt = "outside"

    def step(self, moments: Moments, gradient: Tensors, rounds: int) -> tuple[Moments, dict[str, Tensor]]:
        """Return the moments after a gradient, and what is sent; nothing is changed in place."""
        first, second = {}, {}
        for name, g in gradient.items():
            m, v = moments.first.get(name), moments.second.get(name)
            first[name] = g * (1 - self.beta1) if m is None else (m * self.beta1).add_(g, alpha=1 - self.beta1)
            second[name] = self._second(v, g)
        factor, epsilon = self.factor(rounds), self.epsilon(rounds)
        sent = {name: self._quotient(first[name], second[name], factor, epsilon) for name in first}
        return Moments(first, second, rounds), sent

    def factor(self, rounds: int) -> float:
        """Return what m / (sqrt(v) + epsilon) is multiplied by: scale and both corrections."""
        return self.scale * math.sqrt(1 - self.beta2**rounds) / (1 - self.beta1**rounds)

    def epsilon(self, rounds: int) -> float:
        """Return what is added to sqrt(v), or to v if eps is in the root."""
        correction = 1 - self.beta2**rounds
        return {"outside": self.eps, "corrected": self.eps * math.sqrt(correction), "inside": self.eps * correction}[
            self.eps_at
        ]

    @property
    def gain(self) -> float:
        """The share of g^2 that enters v."""
        return 1.0 if self.variant == "adagrad" else 1 - self.beta2

    def _second(self, v: Tensor | None, g: Tensor) -> Tensor:
        if v is None:
            return torch.square(g).mul_(self.gain)
        if self.variant == "adagrad":
            return torch.addcmul(v, g, g)
        if self.variant == "adam":
            return (v * self.beta2).addcmul_(g, g, value=1 - self.beta2)
        square = torch.square(g)
        return v - (1 - self.beta2) * square * torch.sign(v - square)

    def _quotient(self, m: Tensor, v: Tensor, factor: float, epsilon: float) -> Tensor:
        if self.eps_at == "inside":
            return (m / (v + epsilon).sqrt_()).mul_(factor)
        return (m / v.sqrt().add_(epsilon)).mul_(factor)
