"""How many independent inputs a linear layer's gradient was summed of: the rank, by the largest gap of its spectrum.

The gradient of a linear layer is a sum of one outer product per input, so its rank is the number of independent
inputs, whatever the batch. Rounding, or noise, adds a floor to all singular values; where values fall onto that floor
the ratio of neighbours is largest. No constant decides: the gap itself is the evidence, and is told with every result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CLEAR = 30.0
"""The least gap that is taken for the end of the signal: neighbours in a random spectrum are closer by far."""
_SIGMAS = 6.0
_SQUARED = 1e-8
"""Relative to the largest, singular values below this are lost in the squares they are first computed from."""

_CLEARLY, _BEYOND, _LEAST = 4.0, 16, 0.25
"""How a gap stands out: by how much, from how many of the next ones, and the least logarithm these are taken for."""


@dataclass(frozen=True)
class Spectrum:
    """The parts of a matrix G [m, n] = left diag(values) right that are no noise, in double precision.

    Attributes:
        left: [m, rank], orthonormal columns.
        values: [rank], falling.
        right: [rank, n], orthonormal rows: the span of the inputs.
        gap: the last value over the next one, which is noise.
        noise: deviation of the entries of each row of G from these parts, [m].
        full: whether the rank is all that the matrix' size allows: more inputs may be behind it.
    """

    left: Tensor
    values: Tensor
    right: Tensor
    gap: float
    noise: Tensor
    full: bool

    @property
    def rank(self) -> int:
        """Independent inputs."""
        return len(self.values)

    @property
    def clear(self) -> bool:
        """Whether the gap is one that noise does not show."""
        return not self.full and self.gap >= CLEAR

    def silence(self, directions: Tensor) -> Tensor:
        """Return below what the entries of `left @ q` are zero but for noise, for directions q [k, rank]; [m, k].

        Noise of G reaches them through 1 / values.
        """
        floor = torch.finfo(self.left.dtype).eps * max(self.rank, 1)
        return _SIGMAS * (torch.outer(self.noise, (directions / self.values).norm(dim=1)) + floor)


def before_gap(values: Tensor, floor: float, *, later: bool = False) -> tuple[int, float]:
    """Return how many of falling non-negative `values` come before the largest ratio of neighbours, and that ratio.

    Args:
        values: falling.
        floor: values below count as this: what rounding makes of zeros says nothing. Without any above it: 0 and 1.
        later: take a later gap for the end that stands out as clearly from what follows: in powers of ten it is
            `_CLEARLY` times the largest of the next ratios, as no ratio of neighbours in noise is.
    """
    if len(values) == 0 or float(values[0]) <= floor:
        return 0, 1.0
    above = values.clamp(min=max(floor, torch.finfo(values.dtype).tiny)).log()
    ratios = above[:-1] - above[1:]
    if len(ratios) == 0 or float(ratios.max()) <= 0:
        return len(values), 1.0
    count = int(ratios.argmax()) + 1
    gap = float(ratios[count - 1].exp())
    for place in range(count, len(ratios) - _BEYOND) if later else ():
        if float(ratios[place]) > _CLEARLY * max(float(ratios[place + 1 : place + 1 + _BEYOND].max()), _LEAST):
            count = place + 1
    return count, gap


def spectrum(gradient: Tensor) -> Spectrum:
    """Part a matrix [m, n] at the largest gap of its singular values.

    The gap is found in the smaller of the two squares; the parts before it are then computed anew from the matrix
    itself, so that they are as exact as its entries.
    """
    matrix = gradient.double()
    size = float(matrix.abs().max()) or 1.0
    matrix = matrix / size
    wide = matrix.shape[0] <= matrix.shape[1]
    squares, vectors = torch.linalg.eigh(matrix @ matrix.T if wide else matrix.T @ matrix)
    values = squares.clamp(min=0).sqrt().flip(0)
    floor = float(values[0]) * max(torch.finfo(gradient.dtype).eps / 4, _SQUARED) if len(values) else 0.0
    rank, gap = before_gap(values, floor)
    basis = vectors.flip(1)[:, :rank]
    part = basis.T @ matrix if wide else matrix @ basis
    left, values, right = torch.linalg.svd(part, full_matrices=False)
    left, right = (basis @ left, right) if wide else (left, right @ basis.T)
    rounding = torch.finfo(gradient.dtype).eps / 4 * matrix.square().mean(1).sqrt()
    freedom = max(matrix.shape[1] - rank, 1)
    rest = (matrix - (left * values) @ right).square().sum(1).div(freedom).sqrt()
    noise = torch.maximum(rest, rounding) * size
    return Spectrum(left, values * size, right, gap, noise, rank == min(gradient.shape))
