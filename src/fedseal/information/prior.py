"""What an attacker expects of an image before any update: a Gaussian with mean and covariance of public images.

Of all laws with that covariance the Gaussian says least. With 1.5 times as many images as pixels, or more, the sample
covariance is used, with a little on its diagonal. With fewer it would promise that images lie in the span of the
public ones: then directions are those of the sample, variances along them are measured on images that had no part in
choosing them (as in Lam's cross-validated shrinkage, Ann. Statist. 2016), and what is left of the total is spread
evenly over all other directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedseal.core.errors import InputError, UsageError

RIDGE = 1e-5
"""Variance added to every pixel: a third of a grey level of 256."""

_ENOUGH = 1.5
_FEWEST = 4
_DENSE_PIXELS = 8192
_MAX_RANK = 2048
_FOLDS = 4


@dataclass(frozen=True)
class ImagePrior:
    """N(mean, U diag(along - across) U' + across I) over one image; in double precision.

    Attributes:
        mean: of public images, [C, H, W].
        basis: U, orthonormal columns, [P, r]; P = C H W.
        along: variances along them, [r].
        across: variance in every direction across them.
    """

    mean: Tensor
    basis: Tensor
    along: Tensor
    across: float

    @property
    def pixels(self) -> int:
        """P, numbers in an image."""
        return self.mean.numel()

    @property
    def total(self) -> float:
        """Trace of the covariance."""
        return float(self.along.sum()) + self.across * (self.pixels - len(self.along))

    @property
    def error(self) -> float:
        """Expected squared error per pixel of an attacker who answers with the mean."""
        return self.total / self.pixels

    def root(self, vectors: Tensor) -> Tensor:
        """Multiply vectors [..., P] by the symmetric square root of the covariance."""
        basis = self.basis.to(vectors)
        floor = self.across**0.5
        rooted: Tensor = vectors * floor + ((vectors @ basis) * (self.along.to(vectors).sqrt() - floor)) @ basis.T
        return rooted

    @cached_property
    def axes(self) -> tuple[Tensor, Tensor]:
        """All P principal directions as columns [P, P], and the variances along them [P]; for small images."""
        if len(self.along) == self.pixels:
            return self.basis, self.along
        whole = torch.linalg.qr(self.basis, mode="complete")[0]
        rest = self.along.new_full((self.pixels - len(self.along),), self.across)
        return torch.cat([self.basis, whole[:, len(self.along) :]], 1), torch.cat([self.along, rest])


def fit_prior(images: Tensor, *, ridge: float = RIDGE) -> ImagePrior:
    """Fit the prior to public images.

    Args:
        images: [N, C, H, W] in [0, 1].
        ridge: variance added to every pixel.
    """
    if images.ndim != 4 or len(images) < _FEWEST:
        raise InputError(
            f"a prior needs at least {_FEWEST} public images [N, C, H, W], got {list(images.shape)}.",
            hint="Without public data nobody can say what an image is expected to look like.",
        )
    if not ridge > 0:
        raise UsageError(f"a prior needs a ridge > 0, got {ridge:g}.", hint=f"{RIDGE:g} is a third of a grey level.")
    flat = images.detach().double().flatten(1)
    mean = flat.mean(0)
    centred = flat - mean
    count, pixels = centred.shape
    shaped = mean.view(images.shape[1:])
    if count >= _ENOUGH * pixels and pixels <= _DENSE_PIXELS:
        values, vectors = torch.linalg.eigh(centred.T @ centred / (count - 1))
        return ImagePrior(shaped, vectors, values.clamp(min=0) + ridge, ridge)
    total = float(centred.square().sum()) / (count - 1)
    rank = min(count // 2, pixels // 2, _MAX_RANK)
    basis = _leading(centred, rank)
    along = _held_out_variances(centred, rank)
    along = along * min(1.0, total / max(float(along.sum()), 1e-300))
    across = max(total - float(along.sum()), 0.0) / (pixels - rank)
    return ImagePrior(shaped, basis, along.clamp(min=across) + ridge, across + ridge)


def _leading(centred: Tensor, rank: int) -> Tensor:
    """Return the leading directions of variation of images [N, P], largest first, [P, rank]."""
    vectors: Tensor
    if len(centred) <= centred.shape[1]:
        vectors = torch.linalg.eigh(centred @ centred.T)[1]
        vectors = torch.linalg.qr(centred.T @ vectors[:, -rank:].flip(1))[0]
        return vectors
    vectors = torch.linalg.eigh(centred.T @ centred)[1]
    return vectors[:, -rank:].flip(1).contiguous()


def _held_out_variances(centred: Tensor, rank: int) -> Tensor:
    """Return variances [rank] along the leading directions of some images, of others; the mean over the folds."""
    folds = torch.arange(len(centred), device=centred.device) % _FOLDS
    found = []
    for fold in range(_FOLDS):
        basis = _leading(centred[folds != fold], min(rank, int((folds != fold).sum()) - 1))
        variances = (centred[folds == fold] @ basis).square().mean(0)
        found.append(torch.cat([variances, variances.new_zeros(rank - len(variances))]))
    return torch.stack(found).mean(0) * len(centred) / (len(centred) - 1)
