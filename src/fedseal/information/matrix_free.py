"""The reading without ever forming B: products with it, random probes and conjugate gradients.

trace(C) = trace(W M^-1 W'), M = I + A, A = B'B. A randomised Nystrom approximation of A (Frangella, Tropp and Udell,
SIAM J. Matrix Anal. Appl. 2023) serves twice: its own trace is exact and takes most of the variance out of the probes,
which only estimate what it misses, and it is the preconditioner of their solves. A solve that is stopped early brackets
its value: for a residual r, e'Me <= |r|^2, as no eigenvalue of M is below 1.

Where rounding is the only noise, A's eigenvalues span more than the arithmetic resolves and the steps can solve. Then
the noise is raised to what they can: the reading is at least that, and at most 10 log10(factor) more, as
(I + f A)^-1 >= (I + A)^-1 / f.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedseal.information.linear import LinearUpload

RESOLUTION = {torch.float32: 1e6, torch.float64: 1e13}
"""The largest eigenvalue of A beside which products still resolve the prior's own 1."""

_TOLERANCE = 0.005
_LAST = 5
_TINY = 1e-300


@dataclass(frozen=True)
class Effort:
    """What an estimate may spend.

    Attributes:
        probes: random vectors.
        rank: of the approximation.
        iterations: of each solve; one product with B and one with its transpose for every probe.
        seed: of the probes.
    """

    probes: int = 24
    rank: int = 96
    iterations: int = 60
    seed: int = 0


@dataclass(frozen=True)
class Estimate:
    """What probes say.

    Attributes:
        error: expected squared error per pixel.
        low, high: between which it lies: two standard errors of the probes, and what unfinished solves leave open.
        pixel_errors: diag(C), roughly, [images x P].
        iterations: taken.
        finished: whether the solves reached their tolerance.
        inflation: factor by which the variance of the noise was raised; 1 if it was not.
    """

    error: float
    low: float
    high: float
    pixel_errors: Tensor
    iterations: int
    finished: bool
    inflation: float = 1.0


@dataclass(frozen=True)
class Nystrom:
    """A ~ U diag(values) U', values falling.

    Attributes:
        vectors: U, rows [k, D].
        values: [k].
    """

    vectors: Tensor
    values: Tensor

    def solve(self, block: Tensor) -> Tensor:
        """Return (I + A)^-1 of rows [K, D], by the approximation."""
        inside = block @ self.vectors.T
        return block - (inside * (self.values / (1 + self.values))) @ self.vectors

    def precondition(self, block: Tensor) -> Tensor:
        """Return rows [K, D] with the known large directions divided by their size, relative to the least of them."""
        inside = block @ self.vectors.T
        least = 1 + self.values[-1]
        return block + (inside * (least / (1 + self.values) - 1)) @ self.vectors


def approximate(linear: LinearUpload, rank: int, source: torch.Generator) -> Nystrom:
    """Approximate A by its products with random images of the prior, which lie where A is large."""
    dtype = linear.map.point.dtype
    rank = min(rank, linear.unknowns)
    test = torch.randn(rank, linear.unknowns, generator=source, dtype=torch.float64)
    test = torch.linalg.qr(linear.root(test).T)[0].T.contiguous()
    image = linear.transposed(linear.times(test.to(dtype))).double()
    shift = math.sqrt(linear.unknowns) * float(torch.finfo(dtype).eps) * float(image.norm())
    image = image + shift * test
    core = test @ image.T
    values, vectors = torch.linalg.eigh((core + core.T) / 2)
    kept = values > shift
    factor = (vectors[:, kept] / values[kept].sqrt()).T @ image
    _, sizes, rows = torch.linalg.svd(factor, full_matrices=False)
    return Nystrom(rows, (sizes.square() - shift).clamp(min=0))


def estimate(linear: LinearUpload, effort: Effort | None = None) -> Estimate:
    """Estimate the posterior error of the images."""
    effort = effort or Effort()
    source = torch.Generator().manual_seed(effort.seed)
    known = approximate(linear, effort.rank, source)
    inflation = _solvable(known, effort.iterations, RESOLUTION[linear.map.point.dtype])
    linear.add_noise(inflation)
    known = Nystrom(known.vectors, known.values / inflation)
    signs = (2 * torch.randint(2, (effort.probes, linear.pixels), generator=source) - 1).double()
    probes = torch.cat([signs, signs.new_zeros(effort.probes, linear.map.drawn)], 1)
    starts = linear.root(probes)
    seen = linear.root(known.vectors)[:, : linear.pixels].square().sum(1)
    prior = linear.prior.total * linear.images
    base = prior - float((seen * known.values / (1 + known.values)).sum())
    solved = _solve(linear, known, starts, effort.iterations)
    values, likeness = (starts * solved.answers).sum(1), (starts * known.solve(starts)).sum(1)
    found, spread = _controlled(values, likeness, base)
    low = max(found - spread, 0.0)
    high = min(found + spread + float(solved.open.mean()), prior)
    value = min(max(found + (0.0 if solved.finished else float(solved.open.mean())), low), prior)
    diagonal = (signs * linear.root(solved.answers)[:, : linear.pixels]).mean(0).clamp(min=0)
    count = linear.pixels
    return Estimate(value / count, low / count, high / count, diagonal, solved.iterations, solved.finished, inflation)


def _solvable(known: Nystrom, iterations: int, resolution: float) -> float:
    """Return the factor on the noise's variance at which A is resolved, and its solves end within their steps.

    Behind the preconditioner the condition is about 1 + the least eigenvalue it knows, k steps reduce an error to
    2 exp(-2 k / sqrt(condition)).
    """
    if not len(known.values):
        return 1.0
    condition = (2 * iterations / math.log(2 / _TOLERANCE)) ** 2
    return max(1.0, float(known.values[-1]) / max(condition, 1.0), float(known.values[0]) / resolution)


def _controlled(values: Tensor, likeness: Tensor, expected: float) -> tuple[float, float]:
    """Return the mean of probes' values and twice its standard error, given a likeness whose mean is known.

    What the probes get wrong about the likeness, they get wrong about the values in proportion: a control variate, its
    weight by regression.
    """
    around, known = values - values.mean(), likeness - likeness.mean()
    weight = float((around @ known) / (known @ known).clamp(min=_TINY))
    left = around - weight * known
    error = 2 * float(left.square().sum() / max(len(values) - 2, 1)) ** 0.5 / math.sqrt(len(values))
    return float(values.mean()) - weight * (float(likeness.mean()) - expected), error


@dataclass(frozen=True)
class _Solved:
    """Answers of several systems, [K, D]; `open` bounds what their values x'y may still rise by, [K]."""

    answers: Tensor
    open: Tensor
    iterations: int
    finished: bool


def _solve(linear: LinearUpload, known: Nystrom, right: Tensor, iterations: int) -> _Solved:
    """Solve (I + A) y = x for rows x of `right` by preconditioned conjugate gradients, side by side.

    Each step raises x'y; solves are finished when the last few have raised it by next to nothing.
    """
    dtype = linear.map.point.dtype
    answers, residual = torch.zeros_like(right), right.clone()
    shaped = known.precondition(residual)
    direction, product = shaped, (residual * shaped).sum(1)
    rises: list[float] = []
    while len(rises) < iterations and not _settled(rises):
        image = direction + linear.transposed(linear.times(direction.to(dtype))).double()
        step = product / (direction * image).sum(1).clamp(min=_TINY)
        answers = answers + step.unsqueeze(1) * direction
        residual = residual - step.unsqueeze(1) * image
        rises.append(float((step * product).mean()))
        shaped = known.precondition(residual)
        fresh = (residual * shaped).sum(1)
        direction = shaped + (fresh / product.clamp(min=_TINY)).unsqueeze(1) * direction
        product = fresh
    return _Solved(answers, residual.square().sum(1), len(rises), _settled(rises))


def _settled(rises: list[float]) -> bool:
    """Return whether the last steps have raised the value by less than the tolerance."""
    return len(rises) > _LAST and sum(rises[-_LAST:]) < _TOLERANCE * sum(rises)
