"""Fed-CDP (Wei et al., ICDCS 2021): every tensor clipped by itself; sigma and clip bound may decay over the rounds.

L tensors have sensitivity C sqrt(L), which is what is accounted.

Every tensor of a sample's gradient is clipped to C, the mean gets N(0, (sigma C / B)^2), in every local step; sigma may
fall from `sigma` to `sigma_end` along four curves. Threat model: honest-but-curious server (local differential
privacy).

Cost: per-sample gradients, B x N of memory.

Known breaks: as for `dp-sgd`; decayed noise protects late rounds less, and the published settings have epsilons far
above 1 once joint sensitivity is counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fedseal.core.defence import DEFENCES, RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.registry import Info
from fedseal.defences.dp.clipping import Clipping
from fedseal.defences.dp.mechanism import PrivateGradients

Decay: TypeAlias = Literal["linear", "staircase", "exponential", "cosine"]
"""How a strength goes from its first to its last value."""

_STAIRS = 5


@DEFENCES.register(
    "fed-cdp",
    Info(
        "clip each sample's gradient tensor by tensor, add Gaussian noise that may decay over rounds",
        paper="Wei et al., ICDCS 2021",
        threat="passive",
    ),
)
@dataclass(eq=False)
class FedCDP(PrivateGradients):
    """Fed-CDP; with `sigma_end` or `clip_end` its decaying variants (sigma 10 to 4, or 15 to 4.85, in 100 rounds).

    Attributes:
        sigma_end: sigma after `rounds` rounds; by default it stays.
        clip_end: the clip bound then; by default it stays.
        decay: the way there; `staircase` in five steps.
        rounds: after which the last values are reached.
    """

    sigma: float = 6.0
    clip: float = 4.0
    clipping: Clipping = "per-tensor"
    sigma_end: float | None = None
    clip_end: float | None = None
    decay: Decay = "linear"
    rounds: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        last = self.sigma if self.sigma_end is None else self.sigma_end
        self._check_strength(last, self.clip if self.clip_end is None else self.clip_end)
        if self.rounds < 1 or (self.sigma > 0) != (last > 0) or (math.isinf(self.clip) and self.clip_end is not None):
            raise UsageError(
                f"{self.name} decays between positive, finite values in at least one round; got sigma "
                f"{self.sigma:g} to {last:g}, clip {self.clip:g} to {self.clip_end} in {self.rounds}.",
                hint="For example fed-cdp:sigma=10,sigma_end=4,decay=linear,rounds=100.",
            )

    def _strength(self, context: RoundContext) -> tuple[float, float]:
        progress = min(context.round / self.rounds, 1.0)
        return (
            decayed(self.sigma, self.sigma_end, self.decay, progress),
            decayed(self.clip, self.clip_end, self.decay, progress),
        )


def decayed(first: float, last: float | None, decay: Decay, progress: float) -> float:
    """Return the value at `progress` in [0, 1] of the way from `first` to `last`; `first` if there is no last."""
    if last is None or first == last:
        return first
    if decay == "exponential":
        return float(first * (last / first) ** progress)
    shares = {
        "linear": progress,
        "staircase": math.floor(progress * _STAIRS + 1e-9) / _STAIRS,
        "cosine": (1 - math.cos(math.pi * progress)) / 2,
    }
    return first + (last - first) * shares[decay]
