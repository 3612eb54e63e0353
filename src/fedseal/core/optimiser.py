"""By which rule a client steps, and what that does to gradients: told to an attacker, and followed by who unrolls it.

The rules are those of `torch.optim`: SGD with momentum and weight decay, and Adam with its usual constants. They are
written without anything in place, so that a course of steps can be differentiated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedseal.core.errors import UsageError
from fedseal.core.tensors import Tensors

OptimiserName: TypeAlias = Literal["sgd", "adam"]

_FIRST, _SECOND, _EPSILON = 0.9, 0.999, 1e-8
_LEAST = 1e-32
"""A mean square below which its root is taken as constant: there its slope would be infinite."""


@dataclass(frozen=True)
class Optimiser:
    """A rule of local steps.

    Attributes:
        name: `sgd` or `adam`.
        momentum: of SGD, without dampening.
        weight_decay: times the weights, added to the gradient.
    """

    name: OptimiserName = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.name == "adam" and self.momentum:
            raise UsageError("adam has moments of its own, momentum is of sgd.", hint="Leave momentum out.")

    @property
    def is_plain(self) -> bool:
        """Whether a step is the gradient times the learning rate."""
        return self == PLAIN

    def describe(self) -> str:
        """Return the rule in words."""
        parts = [f"momentum {self.momentum:g}"] if self.momentum else []
        parts += [f"weight decay {self.weight_decay:g}"] if self.weight_decay else []
        name = "Adam" if self.name == "adam" else "SGD" if parts else "plain SGD"
        return name + (f" with {' and '.join(parts)}" if parts else "")

    def reach(self, steps: int) -> float:
        """Return how many plain steps so many go as far as, if every gradient were the same: more with momentum."""
        if not self.momentum:
            return float(steps)
        return sum((1 - self.momentum**step) / (1 - self.momentum) for step in range(1, steps + 1))

    def begin(self) -> Course:
        """Return the rule before its first step."""
        return Course(self)


PLAIN = Optimiser()
"""Plain SGD."""


class Course:
    """A rule on its way, with what it remembers.

    Args:
        rule: to follow.
    """

    def __init__(self, rule: Optimiser) -> None:
        self._rule = rule
        self._steps = 0
        self._first: dict[str, Tensor] = {}
        self._second: dict[str, Tensor] = {}

    def directions(self, weights: Tensors, gradient: Tensors) -> Tensors:
        """Return what a step subtracts from each weight, per learning rate; of one client or of several stacked."""
        if self._rule.is_plain:
            return gradient
        self._steps += 1
        return {name: self._direction(name, weights[name], slope) for name, slope in gradient.items()}

    def _direction(self, name: str, weight: Tensor, slope: Tensor) -> Tensor:
        rule, last = self._rule, self._first.get(name)
        if rule.weight_decay:
            slope = slope + rule.weight_decay * weight
        if rule.name == "sgd":
            self._first[name] = slope if last is None else last * rule.momentum + slope
            return self._first[name]
        squares = self._second.get(name)
        self._first[name] = (1 - _FIRST) * slope + (0.0 if last is None else _FIRST * last)
        self._second[name] = (1 - _SECOND) * slope.square() + (0.0 if squares is None else _SECOND * squares)
        mean = self._first[name] / (1 - _FIRST**self._steps)
        spread = (self._second[name] / (1 - _SECOND**self._steps)).clamp(min=_LEAST)
        return mean / (torch.sqrt(spread) + _EPSILON)
