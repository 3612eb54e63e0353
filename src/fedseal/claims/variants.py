"""Defences that only a claim asks about: written by reference, `fedseal.claims.variants:PruneBy:criterion=weight`."""

from __future__ import annotations

from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.func import functional_call

from fedseal.core.defence import Defence, RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.tensors import Tensors
from fedseal.defences.pruning import check_ratio, largest_mask

Criterion: TypeAlias = Literal["product", "gradient", "weight", "integrated"]


class PruneBy(Defence):
    """Prune the entries of the gradient that matter least by a criterion (Refiner, Tables 1 and 11).

    Args:
        criterion: |weight x gradient|, |gradient|, |weight|, or the gradient integrated from zero weights on, times the
            weight (integrated gradients).
        ratio: share of each tensor that is pruned.
        steps: of the integral.
    """

    stage = "gradient"

    def __init__(self, criterion: Criterion = "product", ratio: float = 0.8, steps: int = 10) -> None:
        check_ratio("PruneBy", ratio)
        self.criterion, self.ratio, self.steps = criterion, ratio, steps

    def on_gradient(self, gradient: Tensors, context: RoundContext) -> Tensors:
        """Zero what matters least."""
        weights = {name: value.detach() for name, value in context.model.named_parameters()}
        worth = self._worth(gradient, weights, context)
        return {name: tensor * largest_mask(worth[name], self.ratio) for name, tensor in gradient.items()}

    def _worth(self, gradient: Tensors, weights: Tensors, context: RoundContext) -> Tensors:
        if self.criterion == "gradient":
            return gradient
        if self.criterion == "weight":
            return {name: weights[name] for name in gradient}
        if self.criterion == "integrated":
            gradient = self._integrated(weights, context)
        return {name: weights[name] * tensor for name, tensor in gradient.items()}

    def _integrated(self, weights: Tensors, context: RoundContext) -> Tensors:
        """Return the mean gradient along the line from zero to the weights, by the midpoint rule."""
        if context.batch is None:
            raise UsageError("PruneBy:criterion=integrated needs the batch of the step.")
        total = {name: torch.zeros_like(value) for name, value in weights.items()}
        for step in range(self.steps):
            share = (step + 0.5) / self.steps
            here = {name: (share * value).requires_grad_(True) for name, value in weights.items()}
            loss = context.loss(partial(functional_call, context.model, here), context.batch)
            slopes = torch.autograd.grad(loss, list(here.values()))
            total = {name: total[name] + slope / self.steps for name, slope in zip(here, slopes, strict=True)}
        return total


class LayerNoise(Defence):
    """Gaussian noise in one half of a network's tensors alone (Refiner, Table 2).

    Args:
        half: `shallow` or `deep` tensors, counted from the input.
        sigma: of the noise, in root mean squares of each tensor's gradient.
        relative: whether it is; else the same for every entry, as in the paper.
    """

    stage = "gradient"

    def __init__(self, half: Literal["shallow", "deep"] = "shallow", sigma: float = 1.0, relative: bool = True) -> None:
        self.half, self.sigma, self.relative = half, sigma, relative

    def on_gradient(self, gradient: Tensors, context: RoundContext) -> Tensors:
        """Add the noise."""
        names = list(gradient)
        middle = len(names) // 2
        noisy = names[:middle] if self.half == "shallow" else names[middle:]
        return {name: self._with_noise(t, context) if name in noisy else t for name, t in gradient.items()}

    def _with_noise(self, tensor: Tensor, context: RoundContext) -> Tensor:
        drawn = torch.randn(tensor.shape, generator=context.generator, device=context.generator.device)
        size = tensor.square().mean().sqrt() if self.relative else 1.0
        return tensor + self.sigma * size * drawn.to(tensor)


class Visible(Defence):
    """Send only entries at one end of the order by magnitude (FedLeak, Figure 8).

    Args:
        end: `top` for the largest, `bottom` for the smallest.
        share: of each tensor that is sent.
    """

    stage = "update"

    def __init__(self, end: Literal["top", "bottom"] = "top", share: float = 0.2) -> None:
        check_ratio("Visible", 1 - share)
        self.end, self.share = end, share

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Zero the rest."""
        return {name: tensor * self._mask(tensor) for name, tensor in update.items()}

    def _mask(self, tensor: Tensor) -> Tensor:
        return largest_mask(tensor, 1 - self.share) if self.end == "top" else ~largest_mask(tensor, self.share)
