"""Additive noise on the clipped upload, the baseline of Refiner (Sec. 6.1) and FedLeak (Sec. 6.2).

The whole upload is clipped to L2 norm C, then noise of a fixed scale is added to every coordinate, after clipping.
Threat model: honest-but-curious server. Scale 0 with clip `inf` is the identity. Where the papers call the amount
"magnitude", it is read as the Gaussian's standard deviation.
"""

from __future__ import annotations

import math

import torch

from fedseal.core.defence import DEFENCES, AttackerView, CostReport, Defence, NoiseLaw, RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors, flatten

_DELTA = 1e-5


def clip_to_norm(tensors: Tensors, bound: float) -> Tensors:
    """Scale all tensors jointly so that their L2 norm is at most `bound`; differentiable, and the identity below it."""
    if math.isinf(bound):
        return tensors
    factor = (bound / (flatten(tensors).norm() + 1e-12)).clamp(max=1.0)
    return {name: tensor * factor for name, tensor in tensors.items()}


@DEFENCES.register(
    "gaussian",
    Info("clip the upload, add Gaussian noise to every coordinate", paper="Abadi et al., CCS 2016", threat="passive"),
)
class GaussianNoise(Defence):
    """Clipping and Gaussian noise on the upload.

    Args:
        sigma: standard deviation of the noise.
        clip: L2 norm the upload is clipped to first; `inf` for no clipping.
    """

    name = "gaussian"
    stage = "update"

    def __init__(self, sigma: float = 0.01, clip: float = 1.0) -> None:
        if sigma < 0 or clip <= 0:
            raise UsageError(f"gaussian needs sigma >= 0 and clip > 0, got {sigma:g} and {clip:g}.")
        self.sigma = sigma
        self.clip = clip

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Clip, then add noise."""
        clipped = clip_to_norm(update, self.clip)
        if self.sigma == 0:
            return clipped
        return {
            name: t + self.sigma * torch.randn(t.shape, generator=context.generator, dtype=t.dtype, device=t.device)
            for name, t in clipped.items()
        }

    def report(self) -> CostReport:
        """Add the nominal epsilon of FedLeak's formula, sigma = C sqrt(2 ln(1/delta)) / epsilon."""
        if self.sigma == 0 or math.isinf(self.clip):
            return CostReport()
        epsilon = self.clip * math.sqrt(2 * math.log(1 / _DELTA)) / self.sigma
        return CostReport(
            epsilon_nominal=epsilon,
            remarks=(f"nominal epsilon for one round at delta = {_DELTA:g}; the formula is sound below 1 only",),
        )

    def attacker_view(self) -> AttackerView:
        """Publish the clip bound, which is simulated, and the law of the noise."""
        return AttackerView(
            self.name,
            {"sigma": self.sigma, "clip": self.clip},
            lambda gradient, observed: clip_to_norm(gradient, self.clip),
            NoiseLaw("gaussian", self.sigma) if self.sigma > 0 else None,
        )
