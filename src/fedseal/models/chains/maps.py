"""The linear maps of a chain on many lanes at once, with shared weights or with each lane's own.

Matching attacks need, besides W x and W^T y, these with a direction in weight space instead of W, another in every
lane. The latter run at the speed of the processor as matrix products over gathered columns; the general way,
convolutions with as many groups as lanes, does not. What all lanes share is convolved by oneDNN where it is there,
which gathers nothing and gives an image the same bits whatever others there are. Lanes come first: x is [L, B, ...] for
B images in each of L lanes. No product spans lanes, so that a lane's bits do not depend on its neighbours (see
`products`); nothing here is differentiable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.models.chains.products import products
from fedseal.models.chains.stages import Link


class LinearMap(Protocol):
    """A stage's linear map. `columns` and `windows` prepare inputs and outputs once for weights of each lane's own."""

    def columns(self, x: Tensor) -> Tensor:
        """Prepare inputs [L, B, *input_shape]."""

    def windows(self, y: Tensor) -> Tensor:
        """Prepare outputs [L, B, *output_shape]."""

    def push(self, x: Tensor) -> Tensor:
        """Return W x: [L, B, *output_shape]."""

    def pull(self, y: Tensor) -> Tensor:
        """Return W^T y: [L, B, *input_shape]."""

    def push_each(self, columns: Tensor, weights: Tensor, shared: Tensor | None = None) -> Tensor:
        """Return V x with each lane's own flat weights V [L, |W|], x prepared as columns; plus W `shared`."""

    def pull_each(self, windows: Tensor, weights: Tensor, shared: Tensor | None = None) -> Tensor:
        """Return V^T y with each lane's own flat weights V [L, |W|], y prepared as windows; plus W^T `shared`."""

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

    def push(self, x: Tensor) -> Tensor:
        """Return x W^T."""
        return products(x.flatten(2), self._weight.T)

    def pull(self, y: Tensor) -> Tensor:
        """Return y W."""
        return products(y, self._weight).view(*y.shape[:2], *self._input_shape)

    def push_each(self, columns: Tensor, weights: Tensor, shared: Tensor | None = None) -> Tensor:
        """Return x V^T, lane by lane, plus `shared` W^T."""
        return products(columns, self._of_lanes(weights).mT, None if shared is None else self.push(shared))

    def pull_each(self, windows: Tensor, weights: Tensor, shared: Tensor | None = None) -> Tensor:
        """Return y V, lane by lane, plus `shared` W."""
        started = None if shared is None else products(shared, self._weight)
        return products(windows, self._of_lanes(weights), started).view(*windows.shape[:2], *self._input_shape)

    def weight_gradient(self, y: Tensor, columns: Tensor) -> Tensor:
        """Return the sum of outer products."""
        return products(y.mT, columns).flatten(1)

    def _of_lanes(self, weights: Tensor) -> Tensor:
        return weights.view(len(weights), *self._weight.shape)


class ConvolutionMap:
    """A convolution as products with gathered patches.

    W^T y is a convolution too: input pixel stride m + r meets tap r + padding - stride d of output m + d, so each class
    of pixels modulo the stride has a small kernel over windows of y. Patches are gathered from pixels whose channels
    lie together, so that a row of a patch is one run of memory; a patch is [a, b, channel] for that reason, and each
    lane's own kernels are brought into this order.

    Args:
        stage: with its weight [O, I, a, b].
    """

    def __init__(self, stage: Link) -> None:
        outputs, channels, *kernel = stage.weight.shape
        sizes = list(stage.input_shape[1:])
        self._shape, self._made = stage.input_shape, stage.output_shape
        self._taps = (outputs, channels, math.prod(kernel))
        axes = [_Axis(*values) for values in zip(sizes, kernel, stage.stride, stage.padding, strict=True)]
        rows, columns = axes
        self._patches = _Patches(rows.under_outputs, columns.under_outputs)
        self._windows = _Patches(rows.around_tiles, columns.around_tiles)
        self._tiles = (rows.stride, columns.stride, rows.tiles, columns.tiles)
        taps = _pairs(rows.tap_index, columns.tap_index, columns.kernel)
        self._kernel_index = _kernel_index(taps, outputs, channels, math.prod(kernel)).to(stage.weight.device)
        self._rows = channels * rows.stride * columns.stride
        pulling = self._rearranged(stage.weight.reshape(1, -1))[0]
        pulling = pulling.view(self._rows, rows.around_tiles.length, columns.around_tiles.length, outputs)
        self._pushing = _Convolution(stage.weight, rows.under_outputs, columns.under_outputs)
        self._pulling = _Convolution(pulling.permute(0, 3, 1, 2), rows.around_tiles, columns.around_tiles)

    def columns(self, x: Tensor) -> Tensor:
        """Gather the patch under every output: [L, B, h w, a b I]."""
        return self._patches(x)

    def windows(self, y: Tensor) -> Tensor:
        """Gather the outputs around every tile of input pixels: [L, B, tiles, d e O]."""
        return self._windows(y)

    def push(self, x: Tensor) -> Tensor:
        """Return the convolution."""
        return self._pushing(x)

    def pull(self, y: Tensor) -> Tensor:
        """Return the transposed convolution."""
        return self._untiled(self._pulling(y), *y.shape[:2])

    def push_each(self, columns: Tensor, weights: Tensor, shared: Tensor | None = None) -> Tensor:
        """Return the convolution, lane by lane, plus that of `shared`."""
        started = None if shared is None else self._pushing(shared).flatten(0, 1).flatten(2)
        made = products(_for_each(self._ordered(weights), columns.shape[1]), columns.flatten(0, 1).mT, started)
        return made.view(*columns.shape[:2], *self._made)

    def pull_each(self, windows: Tensor, weights: Tensor, shared: Tensor | None = None) -> Tensor:
        """Return the transposed convolution, lane by lane, plus that of `shared`."""
        started = None if shared is None else self._pulling(shared).flatten(0, 1).flatten(2)
        kernels = _for_each(self._rearranged(weights), windows.shape[1])
        return self._untiled(products(kernels, windows.flatten(0, 1).mT, started), *windows.shape[:2])

    def _untiled(self, tiles: Tensor, lanes: int, batch: int) -> Tensor:
        """Put pixels [..., I r s, tiles] back to their places: [L, B, I, H, W]."""
        row_stride, column_stride, rows, columns = self._tiles
        channels, height, width = self._shape
        if row_stride == column_stride:
            planes = tiles.reshape(lanes * batch, -1, rows, columns)
            joined = planes if row_stride == 1 else F.pixel_shuffle(planes, row_stride)
        else:
            apart = tiles.view(lanes, batch, channels, row_stride, column_stride, rows, columns)
            joined = apart.permute(0, 1, 2, 5, 3, 6, 4)
        full = joined.reshape(lanes, batch, channels, rows * row_stride, columns * column_stride)
        return full[..., :height, :width]

    def weight_gradient(self, y: Tensor, columns: Tensor) -> Tensor:
        """Return the correlation of y with the inputs."""
        lanes, batch = y.shape[:2]
        _, channels, area = self._taps
        each = products(y.flatten(0, 1).flatten(2), columns.flatten(0, 1))
        summed = each if batch == 1 else each.reshape(lanes, batch, *each.shape[1:]).sum(1)
        return summed.reshape(lanes, -1, area, channels).transpose(2, 3).reshape(lanes, -1)

    def _ordered(self, weights: Tensor) -> Tensor:
        """Return flat kernels [L, |W|] as matrices over patches, [L, O, a b I]."""
        return weights.view(len(weights), *self._taps).transpose(2, 3).reshape(len(weights), self._taps[0], -1)

    def _rearranged(self, weights: Tensor) -> Tensor:
        """Return flat kernels [L, |W|] as the matrices of the transposed map, [L, I r s, d e O]."""
        return F.pad(weights, (0, 1)).index_select(1, self._kernel_index).view(len(weights), self._rows, -1)


@dataclass(frozen=True)
class _Sliding:
    """A window that slides along one dimension.

    Attributes:
        size: of what it slides over.
        before, after: zeros added in front of and behind that.
        start: its first place, counted from the first zero.
        length, stride, count: of the window, of its steps, and how many places it takes.
    """

    size: int
    before: int
    after: int
    start: int
    length: int
    stride: int
    count: int

    @property
    def front(self) -> int:
        """Zeros in front of it that the first window sees; where that starts inside, what is skipped, below zero."""
        return self.before - self.start

    @property
    def behind(self) -> int:
        """Zeros behind it that the last window sees; what no window reaches, below zero."""
        return (self.count - 1) * self.stride + self.length - self.front - self.size

    @property
    def is_even(self) -> bool:
        """Whether as many zeros on both sides as in front make as many places."""
        places = (self.size + 2 * self.front - self.length) // self.stride + 1
        return self.front >= 0 and places == self.count


class _Patches:
    """Gathers patches of planes, [L, B, C, H, W] -> [L, B, places, rows columns C].

    Args:
        rows: how a patch moves down.
        columns: how it moves to the right.
    """

    def __init__(self, rows: _Sliding, columns: _Sliding) -> None:
        self._rows, self._columns = rows, columns

    def __call__(self, x: Tensor) -> Tensor:
        lanes, batch, channels, height, width = x.shape
        rows, columns = self._rows, self._columns
        tall, wide = rows.before + height + rows.after, columns.before + width + columns.after
        padded = x.new_zeros(lanes * batch, tall, wide, channels)
        inner = padded[:, rows.before : rows.before + height, columns.before : columns.before + width]
        inner.copy_(x.flatten(0, 1).permute(0, 2, 3, 1))
        line = wide * channels
        patches = padded.as_strided(
            (lanes * batch, rows.count, columns.count, rows.length, columns.length * channels),
            (tall * line, rows.stride * line, columns.stride * channels, line, 1),
            rows.start * line + columns.start * channels,
        )
        return patches.reshape(lanes, batch, rows.count * columns.count, -1)


class _Convolution:
    """A convolution with the same kernels for all lanes, [L, B, C, H, W] -> [L, B, O, h, w].

    Args:
        kernels: [O, C, a, b].
        rows: how they move down.
        columns: how they move to the right.
    """

    def __init__(self, kernels: Tensor, rows: _Sliding, columns: _Sliding) -> None:
        self._kernels = kernels.contiguous()
        self._rows, self._columns = rows, columns
        self._matrix = kernels.permute(0, 2, 3, 1).reshape(len(kernels), -1)
        self._patches = _Patches(rows, columns)
        even = rows.is_even and columns.is_even
        self._padding = (rows.front, columns.front) if even else (0, 0)
        self._sides = None if even else (columns.front, columns.behind, rows.front, rows.behind)

    def __call__(self, x: Tensor) -> Tensor:
        lanes, batch = x.shape[:2]
        sizes = (self._rows.count, self._columns.count)
        if _one_dnn_takes(x):
            images = x.flatten(0, 1) if self._sides is None else F.pad(x.flatten(0, 1), self._sides)
            stride = (self._rows.stride, self._columns.stride)
            made = torch.mkldnn_convolution(images, self._kernels, None, self._padding, stride, (1, 1), 1)
            return made.view(lanes, batch, -1, *sizes)
        return products(self._matrix, self._patches(x).flatten(0, 1).mT).view(lanes, batch, -1, *sizes)


def _one_dnn_takes(x: Tensor) -> bool:
    there = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(there) and x.device.type == "cpu" and x.dtype == torch.float32


class _Axis:
    """The geometry of one dimension."""

    def __init__(self, size: int, kernel: int, stride: int, padding: int) -> None:
        outputs = (size + 2 * padding - kernel) // stride + 1
        self.kernel, self.stride = kernel, stride
        self.under_outputs = _Sliding(size, padding, padding, 0, kernel, stride, outputs)
        self.tiles = -(-size // stride)
        offsets = torch.arange(-((kernel - 1 - padding) // stride), (stride - 1 + padding) // stride + 1)
        first, last = int(offsets[0]), self.tiles - 1 + int(offsets[-1])
        before, after = max(0, -first), max(0, last - outputs + 1)
        self.around_tiles = _Sliding(outputs, before, after, before + first, len(offsets), 1, self.tiles)
        taps = torch.arange(stride)[:, None] + padding - stride * offsets
        self.tap_index = taps.where((taps >= 0) & (taps < kernel), torch.tensor(-1))


def _for_each(matrices: Tensor, batch: int) -> Tensor:
    """Return each lane's matrix [L, p, q] for each of its images: [L B, p, q]."""
    return matrices if batch == 1 else matrices.repeat_interleave(batch, 0)


def _pairs(rows: Tensor, columns: Tensor, width: int) -> Tensor:
    """Return the kernel position of every pair of taps [r, d] and [s, e], or -1, as [r, s, d, e]."""
    flat = rows[:, None, :, None] * width + columns[None, :, None, :]
    return flat.where((rows[:, None, :, None] >= 0) & (columns[None, :, None, :] >= 0), torch.tensor(-1))


def _kernel_index(taps: Tensor, outputs: int, channels: int, area: int) -> Tensor:
    """Return where in flat kernels [O, I, taps], one zero behind them, the transposed map finds its entries.

    They are ordered as [I, r, s, d, e, O].
    """
    start = (torch.arange(outputs)[None, :] * channels + torch.arange(channels)[:, None]) * area
    index = start[:, None, None, None, None, :] + taps[None, ..., None]
    return index.where(taps[None, ..., None] >= 0, torch.tensor(outputs * channels * area)).reshape(-1)
