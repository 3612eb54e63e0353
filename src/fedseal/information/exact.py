"""The reading with B formed whole: for images small enough, and uploads that fit into memory.

C = W (I + B'B)^-1 W' = (W R^-1)(W R^-1)' with R'R = I + B'B. Where noise is not small, R is a Cholesky factor. Where
rounding is the only noise, squaring B would lose every direction known a million times worse than the best one, which
most are; then R of [B; I] = Q R is computed by Householder reflections. Here W holds the prior's principal directions,
so that traces need no product with it. Layers are read by the same route from their rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedseal.core.errors import CapabilityError
from fedseal.information.linear import LinearUpload

_BYTES_PER_ENTRY = 8 * 3
_CHUNK = 128
_BLOCK = 512
_SQUARABLE = 1e11
_EQUAL = 1e-6


@dataclass(frozen=True)
class Posterior:
    """What is left of the prior.

    Attributes:
        error: expected squared error per pixel.
        effective: trace(I - C S^-1): how many directions are known.
        root: factor of M^-1 within the directions that were looked at: R^-1 [D, D], or Q R^-1 [D, n] of fewer.
        looked_at: Q, [D, n], if these are not all; M^-1 is the identity elsewhere.
    """

    error: float
    effective: float
    root: Tensor
    looked_at: Tensor | None = None


class ExactReader:
    """Forms B once and reads all of it, or some layers.

    Args:
        linear: the upload.
        memory: bytes that may be used.
    """

    def __init__(self, linear: LinearUpload, memory: int) -> None:
        self._linear = linear
        self._axes, variances = linear.prior.axes
        self._variances = torch.cat([variances.repeat(linear.images), variances.new_zeros(linear.map.drawn)])
        self._active = active_entries(linear)
        needed = bytes_needed(int(self._active.sum()), linear.unknowns)
        if needed > memory:
            raise CapabilityError(
                f"an exact reading of {int(self._active.sum()):,} entries by {linear.unknowns:,} unknowns needs "
                f"{needed / 2**30:.1f} GiB, the bound is {memory / 2**30:.1f} GiB.",
                hint="Raise the bound, or leave the choice of method open.",
            )
        self._matrix = self._formed()

    def posterior(self) -> Posterior:
        """Read everything."""
        return self._read(self._matrix)

    def layers(self, groups: Mapping[str, Sequence[str]]) -> dict[str, Posterior]:
        """Read groups of parameter tensors alone, by their names."""
        sizes = torch.tensor(self._linear.sizes)
        owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes)[self._active]
        order = {name: index for index, name in enumerate(self._linear.names)}
        return {
            title: self._read(self._matrix[torch.isin(owner, torch.tensor([order[name] for name in names]))])
            for title, names in groups.items()
        }

    def pixel_errors(self, posterior: Posterior) -> Tensor:
        """Return diag(C), the expected squared error of each pixel, [images x P]."""
        left = self._in_pixels(posterior.root)
        if posterior.looked_at is None:
            return left
        whole = (self._axes.square() @ self._variances[: self._linear.prior.pixels]).repeat(self._linear.images)
        return (whole - self._in_pixels(posterior.looked_at)).clamp(min=0) + left

    def error_with_noise(self) -> Callable[[float], float]:
        """Return the expected squared error per pixel as a function of the deviation of further noise in every entry.

        One decomposition serves all deviations if the noise there is, is the same in all entries; each takes its own
        otherwise.
        """
        sigma = self._linear.sigma[self._active]
        if not len(sigma) or float(sigma.min()) < (1 - _EQUAL) * float(sigma.max()):
            return lambda extra: (
                self._read(self._matrix * (sigma / (sigma.square() + extra**2).sqrt()).unsqueeze(1)).error
            )
        _, sizes, rows = torch.linalg.svd(self._compressed(), full_matrices=False)
        weights = rows.square() @ self._variances
        elsewhere = float(self._variances.sum() - weights.sum())
        own = float(sigma.mean()) ** 2

        def error(extra: float) -> float:
            left = 1 / (1 + sizes.square() * own / (own + extra**2))
            return (float(left @ weights) + elsewhere) / self._linear.pixels

        return error

    def _compressed(self) -> Tensor:
        """Return a matrix of no more rows than unknowns with the same product B'B."""
        if len(self._matrix) <= self._matrix.shape[1]:
            return self._matrix
        upper: Tensor = torch.linalg.qr(self._matrix, mode="r")[1]
        return upper

    def _in_pixels(self, factor: Tensor) -> Tensor:
        """Return the diagonal of W F F' W' for a factor F [D, n], over pixels."""
        scaled = factor * self._variances.sqrt().unsqueeze(1)
        parts = torch.split(scaled[: self._linear.pixels], self._linear.prior.pixels)
        return torch.cat([(self._axes @ part).square().sum(1) for part in parts])

    def _formed(self) -> Tensor:
        """Return the rows of B that are not zero, columns along the prior's principal directions."""
        linear, pixels = self._linear, self._linear.prior.pixels
        spread = torch.cat([self._variances[: linear.pixels].sqrt(), torch.ones(linear.map.drawn, dtype=torch.float64)])
        matrix = torch.empty(int(self._active.sum()), linear.unknowns, dtype=torch.float64)
        for chunk in torch.split(torch.arange(linear.unknowns), _CHUNK):
            directions = torch.zeros(len(chunk), linear.unknowns, dtype=torch.float64)
            for row, column in enumerate(chunk.tolist()):
                image, axis = divmod(column, pixels)
                if column < linear.pixels:
                    directions[row, image * pixels : (image + 1) * pixels] = self._axes[:, axis]
                else:
                    directions[row, column] = 1
            slopes = linear.slopes(directions * spread[chunk].unsqueeze(1)).double().cpu()
            matrix[:, chunk] = (slopes[:, self._active] / linear.sigma[self._active]).T
        return matrix

    def _read(self, matrix: Tensor) -> Posterior:
        """Return the posterior given rows of B, by the smaller side."""
        if len(matrix) >= matrix.shape[1]:
            root = _inverse_root(matrix)
            return self._summed(root.square().sum(1), root)
        directions, upper = torch.linalg.qr(matrix.T)
        root = directions @ _inverse_root(upper.T)
        return self._summed(1 - directions.square().sum(1) + root.square().sum(1), root, directions)

    def _summed(self, kept: Tensor, root: Tensor, looked_at: Tensor | None = None) -> Posterior:
        """Return the posterior from the share of each direction's variance that is left, [D]."""
        error = float(kept @ self._variances) / self._linear.pixels
        return Posterior(error, float((1 - kept[: self._linear.pixels]).sum()), root, looked_at)


def bytes_needed(entries: int, unknowns: int) -> int:
    """Return the memory an exact reading takes."""
    return (entries + 2 * unknowns) * unknowns * _BYTES_PER_ENTRY


def _inverse_root(matrix: Tensor) -> Tensor:
    """Return R^-1 with (I + M'M)^-1 = R^-1 R^-T."""
    identity = torch.eye(matrix.shape[1], dtype=matrix.dtype)
    if float(matrix.square().sum()) < _SQUARABLE:
        upper = torch.linalg.cholesky(_gram(matrix) + identity, upper=True)
    else:
        upper = torch.linalg.qr(torch.cat([matrix, identity]), mode="r")[1]
    inverse: Tensor = torch.linalg.solve_triangular(upper, identity, upper=True)
    return inverse


def _gram(matrix: Tensor) -> Tensor:
    """Return M'M, computing one triangle of blocks only."""
    width = matrix.shape[1]
    result = matrix.new_empty(width, width)
    for start in range(0, width, _BLOCK):
        block = matrix[:, start : start + _BLOCK].T @ matrix[:, start:]
        result[start : start + _BLOCK, start:] = block
        result[start:, start : start + _BLOCK] = block.T
    return result


def active_entries(linear: LinearUpload) -> Tensor:
    """Return which entries of the upload depend on the images at all, by one random direction, [N]."""
    source = torch.Generator().manual_seed(0)
    probe = torch.randn(1, linear.unknowns, generator=source, dtype=torch.float64)
    return (linear.slopes(probe)[0] != 0).cpu()
