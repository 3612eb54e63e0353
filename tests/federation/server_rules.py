"""What servers make of their clients' weight changes, as the papers have it: oracles for Flower's strategies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

ServerStep: TypeAlias = Callable[[Tensor, int], Tensor]
"""From changes [clients, weights] and the round's number, from 1, to the change of the global model."""


class AdaptiveServer:
    """FedAdam and FedYogi (Reddi et al., ICLR 2021, Algorithm 2), without weights of clients.

    Flower corrects Adam's bias (Kingma and Ba 2015, section 2) and counts rounds for it from 2.

    Args:
        rate: eta of the server.
        yogi: the second moment by Yogi's rule.
    """

    def __init__(self, rate: float, *, yogi: bool) -> None:
        self._rate, self._yogi = rate, yogi
        self._first: Tensor | float = 0.0
        self._second: Tensor | float = 0.0

    def __call__(self, changes: Tensor, number: int) -> Tensor:
        """Return the step."""
        mean = changes.mean(0)
        decay, slow = 0.9, 0.99
        self._first = decay * self._first + (1 - decay) * mean
        if self._yogi:
            self._second = self._second - (1 - slow) * mean**2 * torch.sign(self._second - mean**2)
        else:
            self._second = slow * self._second + (1 - slow) * mean**2
        corrected = 1.0 if self._yogi else (1 - slow ** (number + 1)) ** 0.5 / (1 - decay ** (number + 1))
        tau = 1e-3
        return self._rate * corrected * self._first / (torch.as_tensor(self._second).sqrt() + tau)


class NoisyMean:
    """DP-FedAvg with fixed clipping at the server (McMahan et al., ICLR 2018).

    Args:
        multiplier: the noise on the mean has the deviation `multiplier * clip / clients`.
        clip: largest norm of a change.
    """

    def __init__(self, multiplier: float, clip: float) -> None:
        self._multiplier, self._clip = multiplier, clip

    def __call__(self, changes: Tensor, number: int) -> Tensor:
        """Return the step."""
        norms = changes.norm(dim=1, keepdim=True)
        mean = (changes * (self._clip / norms).clamp(max=1.0)).mean(0)
        deviation = self._multiplier * self._clip / len(changes)
        return mean + deviation * torch.randn(mean.shape, generator=torch.Generator().manual_seed(number))


def krum(changes: Tensor, number: int) -> Tensor:
    """Return the change nearest to its n - 2 neighbours (Blanchard et al., NeurIPS 2017), with no attacker among them.

    With one of four, a single neighbour counts, and the two nearest to each other are a tie.
    """
    distances = torch.cdist(changes, changes).square()
    nearest = len(changes) - 2
    scores = distances.sort(1).values[:, 1 : nearest + 1].sum(1)
    return changes[int(scores.argmin())]
