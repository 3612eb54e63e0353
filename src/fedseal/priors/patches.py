"""A Gaussian mixture over patches of images: the patch prior of EPLL (Zoran and Weiss, ICCV 2011).

Patches are taken without their mean. Noise of a known deviation is removed from each by the Wiener filter of its most
probable component, and what overlapping patches say is averaged: one step of EPLL's half quadratic splitting.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_LEAST = 1e-5
"""Variance no direction of a component falls below: that of rounding to eight bits."""
_AT_ONCE = 2048
"""Patches looked at together, few enough to stay in a processor's cache."""


class PatchMixture(nn.Module):
    """The mixture.

    Args:
        channels: of the images.
        side: of a patch.
        components: of the mixture.
    """

    shares: Tensor
    variances: Tensor
    directions: Tensor

    def __init__(self, channels: int, side: int, components: int) -> None:
        super().__init__()
        size = channels * side * side
        self.side = side
        self.register_buffer("shares", torch.full((components,), 1 / components))
        self.register_buffer("variances", torch.full((components, size), _LEAST))
        self.register_buffer("directions", torch.eye(size).repeat(components, 1, 1))

    def patches(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return all patches [N P, size] of images without their means, and the means [N P, 1]."""
        rows = F.unfold(images, self.side).transpose(1, 2).flatten(0, 1)
        means = rows.mean(1, keepdim=True)
        return rows - means, means

    def log_shares(self, rows: Tensor, sigma: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return log p(row, component) [n, K] under noise, and the rows in each component's directions [K, n, size]."""
        turned = torch.matmul(rows, self.directions)
        widths = self.variances + sigma**2
        exponents = torch.matmul(turned.square(), (1 / widths)[:, :, None]).squeeze(2).t()
        constants = self.shares.clamp(min=1e-30).log() - 0.5 * widths.log().sum(1)
        return constants - 0.5 * exponents - 0.5 * rows.shape[1] * math.log(2 * math.pi), turned

    def denoise(self, images: Tensor, sigma: float) -> Tensor:
        """Remove noise of deviation `sigma` from images [N, C, H, W], which are at least a patch large."""
        rows, means = self.patches(images)
        clean = torch.cat([self._filtered(part, sigma) for part in torch.split(rows, _AT_ONCE)])
        columns = (clean + means).view(len(images), -1, rows.shape[1]).transpose(1, 2)
        size = tuple(images.shape[2:])
        summed = F.fold(columns, size, self.side)
        return summed / F.fold(torch.ones_like(columns), size, self.side)

    def _filtered(self, rows: Tensor, sigma: float) -> Tensor:
        """Return patches [n, size] without noise, each by the filter of its most probable component."""
        logs, turned = self.log_shares(rows, sigma)
        chosen = logs.argmax(1)
        kept = self.variances / (self.variances + sigma**2)
        own = turned[chosen, torch.arange(len(rows))] * kept[chosen]
        clean = torch.empty_like(rows)
        for component in sorted(set(chosen.tolist())):
            mine = chosen == component
            clean[mine] = own[mine] @ self.directions[component].t()
        return clean

    def begin(self, rows: Tensor, source: torch.Generator) -> None:
        """Start from random parts of the patches, ordered by their contrast."""
        contrast = rows.square().sum(1)
        noisy = contrast.log() + 0.5 * torch.randn(len(rows), generator=source)
        parts = torch.chunk(noisy.argsort(), len(self.shares))
        weights = torch.zeros(len(rows), len(self.shares))
        for component, part in enumerate(parts):
            weights[part, component] = 1.0
        self._set(rows, weights)

    def improve(self, rows: Tensor) -> float:
        """Take one step of expectation and maximisation; return the mean log-likelihood before it."""
        logs = torch.cat([self.log_shares(part)[0] for part in torch.split(rows, _AT_ONCE)])
        evidence = logs.logsumexp(1)
        self._set(rows, (logs - evidence[:, None]).exp())
        return float(evidence.mean())

    def _set(self, rows: Tensor, weights: Tensor) -> None:
        """Fit the components to rows [n, size] with weights [n, K]."""
        counts = weights.sum(0)
        self.shares.copy_(counts / counts.sum())
        for component, count in enumerate(counts.tolist()):
            if count < 1:
                continue  # it holds nothing any more, and keeps its form
            covariance = (rows * weights[:, component, None]).t() @ rows / count
            values, vectors = torch.linalg.eigh(covariance.double())
            self.variances[component] = values.clamp(min=_LEAST).float()
            self.directions[component] = vectors.float()
