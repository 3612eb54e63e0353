"""Many matrix products at once, each to the last bit as if it were alone.

A product's last bits depend on how its library cuts the matrices: on their shapes, and for thin ones on where they lie
in memory. Folding many into one tall product, as `matmul` does with a shared factor, changes the shape; laying them out
densely gives each another alignment. Here every product keeps its own shape, and all start at multiples of a cache
line, so that a result does not depend on how many there are nor on its place among them.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LINE = 64
"""Bytes of a cache line, and the alignment of PyTorch's own allocations."""


def products(left: Tensor, right: Tensor, onto: Tensor | None = None) -> Tensor:
    """Return left @ right, [n, p, q]; not differentiable.

    Args:
        left: [n, p, k], or one matrix [p, k] for all.
        right: [n, k, q], or one matrix [k, q] for all.
        onto: [n, p, q], to add to; not to be used afterwards.
    """
    count = len(left) if left.dim() == 3 else len(right)
    if onto is not None:
        return _stacked(onto, count).baddbmm_(_stacked(left, count), _stacked(right, count))
    made = _room(left, count, left.shape[-2], right.shape[-1])
    return torch.bmm(_stacked(left, count), _stacked(right, count), out=made)


def _stacked(matrices: Tensor, count: int) -> Tensor:
    """Return matrices [n, p, q], each at the start of a cache line; a single one [p, q] is repeated."""
    if matrices.dim() == 2:
        return matrices.expand(count, -1, -1)
    if matrices.stride(2) != 1 and matrices.stride(1) == 1:
        return _stacked(matrices.mT, count).mT
    step = matrices.stride(0) * matrices.element_size()
    lies_well = matrices.data_ptr() % _LINE == 0 and (step % _LINE == 0 or count == 1)
    if lies_well and matrices.stride(1) == matrices.shape[2] and matrices.stride(2) == 1:
        return matrices
    return _room(matrices, count, *matrices.shape[1:]).copy_(matrices)


def _room(like: Tensor, count: int, rows: int, columns: int) -> Tensor:
    """Return uninitialised matrices [count, rows, columns], each at the start of a cache line."""
    line = _LINE // like.element_size()
    step = -(-rows * columns // line) * line
    size, stride = (count, rows, columns), (step, columns, 1)
    return torch.empty_strided(size, stride, dtype=like.dtype, device=like.device)
