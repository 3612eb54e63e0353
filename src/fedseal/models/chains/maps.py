"""The linear maps of a chain on many lanes at once, with shared weights or with each lane's own.

Matching attacks need, besides W x and W^T y, these with a direction in weight space instead of W, another in every
lane. As matrix products over gathered columns both run at the speed of the processor; the general way, convolutions
with as many groups as lanes, does not. Lanes come first: x is [L, B, ...] for B images in each of L lanes. No product
spans lanes, so that a lane's bits do not depend on its neighbours (see `products`); nothing here is differentiable.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.models.chains.products import products
from fedseal.models.chains.stages import Link


class LinearMap(Protocol):
    """A stage's linear map. `columns` and `windows` prepare inputs and outputs once for several uses."""

    def columns(self, x: Tensor) -> Tensor:
        """Prepare inputs [L, B, *input_shape]."""

    def windows(self, y: Tensor) -> Tensor:
        """Prepare outputs [L, B, *output_shape]."""

    def push(self, columns: Tensor) -> Tensor:
        """Return W x: [L, B, *output_shape], x prepared as columns."""

    def pull(self, windows: Tensor) -> Tensor:
        """Return W^T y: [L, B, *input_shape], y prepared as windows."""

    def push_each(self, columns: Tensor, weights: Tensor) -> Tensor:
        """Return W x with each lane's own flat weights [L, |W|], x prepared as columns."""

    def pull_each(self, windows: Tensor, weights: Tensor) -> Tensor:
        """Return W^T y with each lane's own flat weights [L, |W|], y prepared as windows."""

    def weight_gradient(self, y: Tensor, columns: Tensor) -> Tensor:
        """Return the sum over B of d<y, W x>/dW, [L, |W|]."""


def linear_map(stage: Link) -> LinearMap:
    """Return a stage's linear map."""
    return DenseMap(stage) if isinstance(stage.module, nn.Linear) else ConvolutionMap(stage)


class DenseMap:
    """A linear layer.

    Args:
        stage: with its weight [O, I].
    """

    def __init__(self, stage: Link) -> None:
        self._weight = stage.weight.clone()
        self._input_shape = stage.input_shape

    def columns(self, x: Tensor) -> Tensor:
        """Flatten each image: [L, B, I]."""
        return x.flatten(2)

    def windows(self, y: Tensor) -> Tensor:
        """Return y itself, [L, B, O]."""
        return y

    def push(self, columns: Tensor) -> Tensor:
        """Return x W^T."""
        return products(columns, self._weight.T)

    def pull(self, windows: Tensor) -> Tensor:
        """Return y W."""
        return products(windows, self._weight).view(*windows.shape[:2], *self._input_shape)

    def push_each(self, columns: Tensor, weights: Tensor) -> Tensor:
        """Return x W^T, lane by lane."""
        return products(columns, self._of_lanes(weights).mT)

    def pull_each(self, windows: Tensor, weights: Tensor) -> Tensor:
        """Return y W, lane by lane."""
        return products(windows, self._of_lanes(weights)).view(*windows.shape[:2], *self._input_shape)

    def weight_gradient(self, y: Tensor, columns: Tensor) -> Tensor:
        """Return the sum of outer products."""
        return products(y.mT, columns).flatten(1)

    def _of_lanes(self, weights: Tensor) -> Tensor:
        return weights.view(len(weights), *self._weight.shape)


class ConvolutionMap:
    """A convolution as products with gathered columns.

    W^T y is a convolution too: input pixel stride m + r meets tap r + padding - stride d of output m + d, so each class
    of pixels modulo the stride has a small kernel over windows of y.

    Args:
        stage: with its weight [O, I, a, b].
    """

    def __init__(self, stage: Link) -> None:
        outputs, channels, *kernel = stage.weight.shape
        sizes = list(stage.input_shape[1:])
        self._shape, self._made = stage.input_shape, stage.output_shape
        self._kernel = stage.weight.flatten(1).clone()
        axes = [_Axis(*values) for values in zip(sizes, kernel, stage.stride, stage.padding, strict=True)]
        rows, columns = axes
        self._padding = (columns.padding, columns.padding, rows.padding, rows.padding)
        self._column_index = _outer(rows.column_index, columns.column_index, columns.padded)
        self._margins = (*columns.margins, *rows.margins)
        self._window_index = _outer(rows.window_index, columns.window_index, columns.window_size)
        self._tiles = (rows.stride, columns.stride, rows.tiles, columns.tiles)
        taps = _pairs(rows.tap_index, columns.tap_index, columns.kernel)
        self._kernel_index = _kernel_index(taps, outputs, channels, math.prod(kernel)).to(stage.weight.device)
        self._rows = channels * rows.stride * columns.stride
        self._pulling = self._rearranged(stage.weight.reshape(1, -1))[0]
        self._column_index = self._column_index.to(stage.weight.device)
        self._window_index = self._window_index.to(stage.weight.device)

    def columns(self, x: Tensor) -> Tensor:
        """Gather the patch under every output: [L, B, I a b, h w]."""
        return self._gathered(x, self._padding, self._column_index, self._kernel[0].numel())

    def windows(self, y: Tensor) -> Tensor:
        """Gather the outputs around every tile of input pixels: [L, B, O d e, tiles]."""
        return self._gathered(y, self._margins, self._window_index, self._pulling[0].numel())

    def push(self, columns: Tensor) -> Tensor:
        """Return the convolution."""
        made = products(self._kernel, columns.flatten(0, 1))
        return made.view(*columns.shape[:2], *self._made)

    def pull(self, windows: Tensor) -> Tensor:
        """Return the transposed convolution."""
        return self._untiled(products(self._pulling, windows.flatten(0, 1)), *windows.shape[:2])

    def push_each(self, columns: Tensor, weights: Tensor) -> Tensor:
        """Return the convolution, lane by lane."""
        kernels = weights.view(len(weights), len(self._kernel), -1)
        made = products(_for_each(kernels, columns.shape[1]), columns.flatten(0, 1))
        return made.view(*columns.shape[:2], *self._made)

    def pull_each(self, windows: Tensor, weights: Tensor) -> Tensor:
        """Return the transposed convolution, lane by lane."""
        kernels = _for_each(self._rearranged(weights), windows.shape[1])
        return self._untiled(products(kernels, windows.flatten(0, 1)), *windows.shape[:2])

    def _untiled(self, tiles: Tensor, lanes: int, batch: int) -> Tensor:
        """Put pixels [..., I r s, tiles] back to their places: [L, B, I, H, W]."""
        row_stride, column_stride, rows, columns = self._tiles
        channels, height, width = self._shape
        if row_stride == column_stride == 1:
            return tiles.reshape(lanes, batch, channels, rows, columns)
        apart = tiles.view(lanes, batch, channels, row_stride, column_stride, rows, columns)
        joined = apart.permute(0, 1, 2, 5, 3, 6, 4).reshape(
            lanes, batch, channels, rows * row_stride, columns * column_stride
        )
        return joined[..., :height, :width]

    def weight_gradient(self, y: Tensor, columns: Tensor) -> Tensor:
        """Return the correlation of y with the inputs."""
        lanes, batch = y.shape[:2]
        each = products(y.flatten(0, 1).flatten(2), columns.flatten(0, 1).mT)
        return each.flatten(1) if batch == 1 else each.reshape(lanes, batch, -1).sum(1)

    def _gathered(self, x: Tensor, padding: tuple[int, ...], index: Tensor, rows: int) -> Tensor:
        lanes, batch = x.shape[:2]
        planes = F.pad(x, padding).reshape(lanes * batch * x.shape[2], -1)
        return planes.index_select(1, index).view(lanes, batch, rows, -1)

    def _rearranged(self, weights: Tensor) -> Tensor:
        """Return flat kernels [L, |W|] as the matrices of the transposed map, [L, I r s, O d e]."""
        return F.pad(weights, (0, 1)).index_select(1, self._kernel_index).view(len(weights), self._rows, -1)


class _Axis:
    """The geometry of one dimension."""

    def __init__(self, size: int, kernel: int, stride: int, padding: int) -> None:
        outputs = (size + 2 * padding - kernel) // stride + 1
        self.kernel, self.stride, self.padding = kernel, stride, padding
        self.padded = size + 2 * padding
        self.column_index = torch.arange(kernel)[:, None] + stride * torch.arange(outputs)
        self.tiles = -(-size // stride)
        offsets = torch.arange(-((kernel - 1 - padding) // stride), (stride - 1 + padding) // stride + 1)
        first, last = int(offsets[0]), self.tiles - 1 + int(offsets[-1])
        self.margins = (max(0, -first), max(0, last - outputs + 1))
        self.window_size = outputs + sum(self.margins)
        self.window_index = offsets[:, None] + self.margins[0] + torch.arange(self.tiles)
        taps = torch.arange(stride)[:, None] + padding - stride * offsets
        self.tap_index = taps.where((taps >= 0) & (taps < kernel), torch.tensor(-1))


def _for_each(matrices: Tensor, batch: int) -> Tensor:
    """Return each lane's matrix [L, p, q] for each of its images: [L B, p, q]."""
    return matrices if batch == 1 else matrices.repeat_interleave(batch, 0)


def _outer(rows: Tensor, columns: Tensor, width: int) -> Tensor:
    """Return the flat index of every pair of [a, h] and [b, w] in a plane of that width, in the order a, b, h, w."""
    return (rows[:, None, :, None] * width + columns[None, :, None, :]).reshape(-1)


def _pairs(rows: Tensor, columns: Tensor, width: int) -> Tensor:
    """Return the kernel position of every pair of taps [r, d] and [s, e], or -1, as [r, s, d, e]."""
    flat = rows[:, None, :, None] * width + columns[None, :, None, :]
    return flat.where((rows[:, None, :, None] >= 0) & (columns[None, :, None, :] >= 0), torch.tensor(-1))


def _kernel_index(taps: Tensor, outputs: int, channels: int, area: int) -> Tensor:
    """Return where in flat kernels [O, I, taps], one zero behind them, the transposed map finds its entries."""
    start = (torch.arange(outputs)[None, :] * channels + torch.arange(channels)[:, None]) * area
    index = start[:, None, None, :, None, None] + taps[None, :, :, None]
    return index.where(taps[None, :, :, None] >= 0, torch.tensor(outputs * channels * area)).reshape(-1)
