"""What the attacker believes of images before seeing an update: terms added to the matching distance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedseal.attacks.matching.captures import Captured

Statistics: TypeAlias = dict[str, tuple[Tensor, Tensor]]
"""Mean and variance per batch normalisation layer, by module name."""


ActivationNorm: TypeAlias = Literal["mean", "l1"]


def total_variation(images: Tensor) -> Tensor:
    """Return the anisotropic total variation of [B, C, H, W]: mean |dx| + mean |dy| (Inverting Gradients)."""
    dx = (images[..., :, 1:] - images[..., :, :-1]).abs().mean()
    dy = (images[..., 1:, :] - images[..., :-1, :]).abs().mean()
    return dx + dy


@dataclass(frozen=True)
class Priors:
    """Weights of the prior terms.

    Attributes:
        tv: total variation, mean over pixels.
        tv_per_pixel: multiply it by the number of pixels, which makes it a sum (the Bayes attack's prior).
        l2: squared norm of the inputs, summed (GradInversion).
        bn: distance of batch normalisation statistics to known ones (GradInversion, Eq. 5).
        bn_source: which statistics those are: of the client's batch if the server received them, or running ones.
        first_bn: factor on the first normalisation layer, as DeepInversion-derived code has it.
        activation: size of what activations return (FedLeak's beta term).
        activation_norm: that size, summed over layers: `mean` magnitude, or `l1`, the norm of Eq. 15.
    """

    tv: float = 0.0
    tv_per_pixel: bool = False
    l2: float = 0.0
    bn: float = 0.0
    bn_source: Literal["batch", "running", "none"] = "none"
    first_bn: float = 10.0
    activation: float = 0.0
    activation_norm: ActivationNorm = "mean"

    @property
    def needs_captures(self) -> bool:
        """Whether the model's inner values are needed."""
        return self.activation > 0 or self.needs_statistics

    @property
    def needs_statistics(self) -> bool:
        """Whether the statistics that enter batch normalisation are needed."""
        return self.bn > 0 and self.bn_source != "none"

    @property
    def are_absent(self) -> bool:
        """Whether there is no prior at all."""
        return not (self.tv or self.l2 or self.needs_captures)

    def value(self, inputs: Tensor, captured: Captured, statistics: Statistics | None) -> Tensor:
        """Return the weighted sum of all terms for inputs [B, C, H, W]."""
        total = self.of_images(inputs)
        if self.bn and statistics is not None:
            total = total + self.bn * bn_distance(captured.bn, statistics, self.first_bn)
        if self.activation and captured.activations:
            sizes = [a.abs().sum() * self.activation_weight(a.numel()) for a in captured.activations]
            total = total + torch.stack(sizes).sum()
        return total

    def activation_weight(self, entries: int) -> float:
        """Return what one unit of magnitude costs in a layer of so many entries, over all images."""
        return self.activation / (entries if self.activation_norm == "mean" else 1)

    def of_images(self, inputs: Tensor) -> Tensor:
        """Return the terms that need nothing but the inputs [B, C, H, W]."""
        total = inputs.new_zeros(())
        if self.tv:
            weight = self.tv * (inputs.numel() if self.tv_per_pixel else 1)
            total = total + weight * total_variation(inputs)
        if self.l2:
            total = total + self.l2 * inputs.square().sum()
        return total

    @torch.no_grad()
    def of_lanes(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return `of_images` of lanes [L, B, C, H, W], [L], and its gradient: written out, it costs a fifth."""
        values, slope = inputs.new_zeros(len(inputs)), torch.zeros_like(inputs)
        if self.tv:
            weight = self.tv * (inputs[0].numel() if self.tv_per_pixel else 1)
            for dim in (3, 4):
                steps = inputs.diff(dim=dim)
                values += weight * steps.abs().flatten(1).mean(1)
                towards = steps.sign_().mul_(weight / steps[0].numel())
                slope.narrow(dim, 1, steps.shape[dim]).add_(towards)
                slope.narrow(dim, 0, steps.shape[dim]).sub_(towards)
        if self.l2:
            values += self.l2 * inputs.square().flatten(1).sum(1)
            slope.add_(inputs, alpha=2 * self.l2)
        return values, slope


def bn_distance(mine: Statistics, known: Statistics, first: float) -> Tensor:
    """Return the sum over layers of |mean - mean'| + |variance - variance'|, the first layer weighted by `first`."""
    terms = []
    for index, (name, (mean, variance)) in enumerate(known.items()):
        distance = _norm(mine[name][0] - mean) + _norm(mine[name][1] - variance)
        terms.append(distance * (first if index == 0 else 1.0))
    return torch.stack(terms).sum()


def _norm(vector: Tensor) -> Tensor:
    """Return the L2 norm with a gradient of 0, not NaN, at 0."""
    return (vector.square().sum() + 1e-20).sqrt()
