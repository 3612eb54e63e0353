"""One convolution inverted: its input from its weight gradient and its output, by least squares.

With k = dL/dz the gradient obeys dW[o, i, a, b] = sum_p k[o, p] x[i, stride p + (a, b) - padding]: linear in x, the
same matrix for every input channel i, and separate for each class of pixels modulo the stride. So what R-GAP solves as
one large system falls apart into a few small ones. What they leave undetermined follows from the weight rows W x = z.
Layers too large for that are solved by conjugate gradients on both kinds of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

from fedseal.models.chains.stages import Link

_DENSE_PIXELS = 400
_DENSE_WORK = 350_000_000
_SETTLED = 1e-26
_CONSISTENT = 1e-3
_WELL_CONDITIONED = 1e-4


@dataclass(frozen=True)
class PixelClass:
    """The pixels of one residue modulo the stride, and the kernel taps that touch them.

    Attributes:
        rows, columns: of the pixels.
        row_taps, column_taps: of the kernel.
        system: [O * taps, pixels], maps a channel's pixels to that channel's weight gradient.
    """

    rows: Tensor
    columns: Tensor
    row_taps: list[int]
    column_taps: list[int]
    system: Tensor


@dataclass(frozen=True)
class Inverted:
    """A layer's input [C, H, W], and how many of its entries the gradient and weight rows left undetermined."""

    inputs: Tensor
    undetermined: int


def pixel_classes(stage: Link, slope: Tensor) -> Iterator[PixelClass]:
    """Yield the separate systems behind a convolution's weight gradient, for slopes [O, h, w] of the loss."""
    _, height, width = stage.input_shape
    outputs = len(slope)
    kernel = stage.weight.shape[2:]
    padded = F.pad(slope, (0, 1, 0, 1))
    for row_residue in range(stage.stride[0]):
        rows, row_taps, row_index = _axis(row_residue, height, kernel[0], stage.stride[0], stage.padding[0])
        for column_residue in range(stage.stride[1]):
            columns, column_taps, column_index = _axis(
                column_residue, width, kernel[1], stage.stride[1], stage.padding[1]
            )
            picked = padded[:, row_index][..., column_index]
            system = picked.permute(0, 1, 3, 2, 4).reshape(outputs * len(row_taps) * len(column_taps), -1)
            yield PixelClass(rows, columns, row_taps, column_taps, system)


@cache
def _axis(residue: int, size: int, kernel: int, stride: int, padding: int) -> tuple[Tensor, list[int], Tensor]:
    """Return the pixels of a residue, the taps that touch them, and which output each pair meets, [taps, pixels].

    An output outside the map is given as its size, where the slopes are padded by zero.
    """
    pixels = torch.arange(residue, size, stride)
    taps = [tap for tap in range(kernel) if (tap - padding - residue) % stride == 0]
    outputs = (size + 2 * padding - kernel) // stride + 1
    index = (pixels[None] + padding - torch.tensor(taps, dtype=torch.long)[:, None]) // stride
    return pixels, taps, index.where((index >= 0) & (index < outputs), torch.tensor(outputs))


def is_small(stage: Link) -> bool:
    """Return whether the separate systems of a convolution are cheap to factorise and leave little open."""
    channels, height, width = stage.input_shape
    if height * width > _DENSE_PIXELS * stage.stride[0] * stage.stride[1]:
        return False
    rows, columns = (
        [_axis(residue, *values)[:2] for residue in range(values[2])]
        for values in zip(stage.input_shape[1:], stage.weight.shape[2:], stage.stride, stage.padding, strict=True)
    )
    open_pixels = sum(
        max(0, len(pixels) * len(others) - len(stage.weight) * len(taps) * len(other_taps))
        for pixels, taps in rows
        for others, other_taps in columns
    )
    return _is_cheap(stage, channels * open_pixels)


def _is_cheap(stage: Link, unknowns: int) -> bool:
    """Return whether the weight rows can be solved densely for so many unknowns."""
    return math.prod(stage.output_shape) * unknowns**2 <= _DENSE_WORK


def invert_directly(
    stage: Link, slope: Tensor, gradient: Tensor, preactivation: Tensor, known: Tensor, cutoff: float
) -> Inverted | None:
    """Solve a small convolution: gradient rows by singular values, what they leave open by weight rows.

    Args:
        stage: the convolution.
        slope: dL/dz [O, h, w].
        gradient: dL/dW [O, I, a, b].
        preactivation: z without bias [O, h, w].
        known: where z is known.
        cutoff: singular values below this share of the largest count as none.

    Returns:
        The input, or None if too much is left open for a dense solution.
    """
    channels, height, width = stage.input_shape
    inputs = slope.new_zeros(channels, height, width)
    open_directions = []
    for part in pixel_classes(stage, slope):
        shape = (len(part.rows), len(part.columns))
        seen = gradient[:, :, part.row_taps][..., part.column_taps].permute(0, 2, 3, 1).reshape(-1, channels)
        is_wide = part.system.shape[0] < part.system.shape[1]
        left, values, right = torch.linalg.svd(part.system, full_matrices=is_wide)
        rank = int((values > cutoff * values.max().clamp(min=1e-300)).sum()) if values.numel() else 0
        solved = right[:rank].T @ ((left[:, :rank].T @ seen) / values[:rank, None])
        inputs[:, part.rows[:, None], part.columns] = solved.T.reshape(channels, *shape)
        basis = slope.new_zeros(part.system.shape[1] - rank, height, width)
        basis[:, part.rows[:, None], part.columns] = right[rank:].reshape(-1, *shape)
        open_directions.append(basis)
    basis = torch.cat(open_directions)
    if not _is_cheap(stage, channels * len(basis)):
        return None
    if not len(basis):
        return Inverted(inputs, 0)
    columns = _weight_rows(stage, basis)[known.reshape(-1)]
    missing = (preactivation - stage.apply(inputs[None])[0])[known]
    solution, rank = _least_squares(columns, missing, cutoff)
    share = solution.view(channels, len(basis))
    return Inverted(inputs + torch.einsum("cr,rhw->chw", share, basis), channels * len(basis) - rank)


def _least_squares(matrix: Tensor, wanted: Tensor, cutoff: float) -> tuple[Tensor, int]:
    """Return the solution and the rank: by a Cholesky factor where that is safe, else by a rank-revealing QR."""
    if len(matrix) >= matrix.shape[1]:
        factor, failed = torch.linalg.cholesky_ex(matrix.T @ matrix)
        steps = factor.diagonal()
        if not bool(failed) and bool(steps.min() > _WELL_CONDITIONED * steps.max()):
            return torch.cholesky_solve((matrix.T @ wanted)[:, None], factor)[:, 0], matrix.shape[1]
    careful = torch.linalg.lstsq(matrix, wanted[:, None], rcond=cutoff, driver="gelsy")
    return careful.solution[:, 0], int(careful.rank)


def _weight_rows(stage: Link, basis: Tensor) -> Tensor:
    """Return W on each basis image [R, H, W] in each channel, as columns: [O h w, C R]."""
    channels, outputs = stage.input_shape[0], len(stage.weight)
    kernels = stage.weight.transpose(0, 1).reshape(channels * outputs, 1, *stage.weight.shape[2:])
    images = F.conv2d(basis[:, None], kernels, None, stage.stride, stage.padding)
    separate = images.view(len(basis), channels, outputs, *stage.output_shape[1:])
    return separate.permute(2, 3, 4, 1, 0).reshape(-1, channels * len(basis))


def gradient_system(stage: Link, slope: Tensor) -> Tensor:
    """Return the matrix [O a b, H W] from one input channel to its weight gradient."""
    _, height, width = stage.input_shape
    outputs, _, rows, columns = stage.weight.shape
    system = slope.new_zeros(outputs, rows, columns, height, width)
    for part in pixel_classes(stage, slope):
        sizes = (outputs, len(part.row_taps), len(part.column_taps), len(part.rows), len(part.columns))
        taps, pixels = torch.tensor(part.row_taps), part.rows
        system[
            :,
            taps[:, None, None, None],
            torch.tensor(part.column_taps)[:, None, None],
            pixels[:, None],
            part.columns,
        ] = part.system.view(sizes)
    return system.view(outputs * rows * columns, height * width)


def invert_iteratively(
    stage: Link,
    slope: Tensor,
    gradient: Tensor,
    preactivation: Tensor,
    known: Tensor,
    iterations: int,
    report: Callable[[int, Tensor], None],
) -> Inverted:
    """Solve a large convolution by conjugate gradients on the normal equations, from middle grey.

    Where the weight rows alone are more than enough, they are tried alone; if what they give contradicts the gradient,
    and everywhere else, all rows are solved. `report` hears of the input [C, H, W] after every step.
    """
    solve = partial(_conjugate_gradients, stage, gradient, preactivation, known, iterations, report)
    if bool(known.all()) and math.prod(stage.output_shape) >= 2 * math.prod(stage.input_shape):
        inputs = solve(slope.new_zeros(0, math.prod(stage.input_shape[1:])))
        implied = conv2d_weight(  # type: ignore[no-untyped-call]
            inputs[None], stage.weight.shape, slope[None], stage.stride, stage.padding
        )
        if bool((implied - gradient).norm() <= _CONSISTENT * gradient.norm()):
            return Inverted(inputs, 0)
    equations = int(known.sum()) + gradient.numel()
    inputs = solve(gradient_system(stage, slope))
    return Inverted(inputs, max(0, inputs.numel() - equations))


def _conjugate_gradients(
    stage: Link,
    gradient: Tensor,
    preactivation: Tensor,
    known: Tensor,
    iterations: int,
    report: Callable[[int, Tensor], None],
    system: Tensor,
) -> Tensor:
    """Solve weight rows and the rows of `system` (none of them if it is empty), both scaled to the same length."""
    channels = stage.input_shape[0]
    mask = known.to(preactivation)
    weight_scale = 1 / stage.weight.flatten(1).norm(dim=1).mean().clamp(min=1e-300)
    gradient_scale = 1 / system.norm(dim=1).mean().clamp(min=1e-300) if len(system) else system.new_ones(())
    system = system * gradient_scale
    seen = gradient if len(system) else gradient[:0]

    def rows(x: Tensor) -> tuple[Tensor, Tensor]:
        return stage.apply(x[None])[0] * mask * weight_scale, x.reshape(channels, -1) @ system.T

    def transposed(weight_part: Tensor, gradient_part: Tensor) -> Tensor:
        pulled: Tensor = stage.apply_transposed((weight_part * mask * weight_scale)[None])[0]
        pushed: Tensor = gradient_part @ system
        return pulled + pushed.view(stage.input_shape)

    x = preactivation.new_full(stage.input_shape, 0.5)
    wanted = preactivation * mask * weight_scale, seen.transpose(0, 1).reshape(channels, len(system)) * gradient_scale
    made = rows(x)
    misfit = wanted[0] - made[0], wanted[1] - made[1]
    downhill = transposed(*misfit)
    direction, power = downhill, downhill.square().sum()
    settled = _SETTLED * power
    for step in range(iterations):
        along = rows(direction)
        length = power / (along[0].square().sum() + along[1].square().sum()).clamp(min=1e-300)
        x = x + length * direction
        misfit = misfit[0] - length * along[0], misfit[1] - length * along[1]
        report(step, x)
        downhill = transposed(*misfit)
        before, power = power, downhill.square().sum()
        if not bool(power > settled):
            break
        direction = downhill + power / before * direction
    return x
