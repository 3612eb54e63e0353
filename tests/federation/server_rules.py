"""What servers make of their clients' weight changes, as the papers have it: oracles for Flower's strategies."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

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
    """DP-FedAvg with fixed clipping (McMahan et al., ICLR 2018), with the noise that a seeded NumPy gives Flower.

    Args:
        multiplier: the noise on the mean has the deviation `multiplier * clip / clients`.
        clip: largest norm of a change.
        state: the model's, buffers too: Flower draws for each tensor of it, in order.
        seed: of NumPy's generator.
    """

    def __init__(self, multiplier: float, clip: float, state: nn.Module, seed: int) -> None:
        self._multiplier, self._clip = multiplier, clip
        names = {name for name, _ in state.named_parameters()}
        self._shapes = [(name in names, tuple(tensor.shape)) for name, tensor in state.state_dict().items()]
        self._source = np.random.RandomState(seed)

    def __call__(self, changes: Tensor, number: int) -> Tensor:
        """Return the step."""
        norms = changes.norm(dim=1, keepdim=True)
        mean = (changes * (self._clip / norms).clamp(max=1.0)).mean(0)
        self._adapt(int((norms > self._clip).sum()), len(changes))
        deviation = self._multiplier * self._clip / len(changes)
        drawn = [(kept, self._source.normal(0, deviation, shape)) for kept, shape in self._shapes]
        return mean + torch.from_numpy(np.concatenate([noise.ravel() for kept, noise in drawn if kept])).float()

    def _adapt(self, clipped: int, clients: int) -> None:
        """Keep the clipping norm."""


class AdaptiveNoisyMean(NoisyMean):
    """The clipping norm follows the median norm of changes (Andrew et al., NeurIPS 2021), as far as Flower has it.

    Args as for `NoisyMean`; `multiplier` is that of both releases, the mean and the noisy count of what was clipped,
    which has the deviation `clients / 20` (section 3.2).
    """

    def _adapt(self, clipped: int, clients: int) -> None:
        share = self._source.normal(clipped, clients / 20) / clients
        self._clip *= math.exp(-0.2 * (share - 0.5))

    @staticmethod
    def split(multiplier: float, clients: int) -> float:
        """Return the multiplier that is left for the mean (section 3.2, equation for z_delta)."""
        return (multiplier**-2 - (clients / 10) ** -2) ** -0.5


def krum(changes: Tensor, number: int) -> Tensor:
    """Return the change nearest to its n - f - 2 neighbours (Blanchard et al., NeurIPS 2017), for f = 1 attacker.

    They ask for n >= 2 f + 3 clients: five.
    """
    distances = torch.cdist(changes.double(), changes.double()).square()
    nearest = len(changes) - 1 - 2
    scores = distances.sort(1).values[:, 1 : nearest + 1].sum(1)
    return changes[int(scores.argmin())]
