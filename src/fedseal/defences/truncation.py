"""Truncation to leading singular directions, with the derivative it has wherever there is a gap.

The derivative of a singular value decomposition divides by every difference of two values, also by those of values
that are equal, of which a gradient of rank one has many. That of the truncated matrix needs only the gap between what
is kept and what is not. To first order, with A = U' dG V and i kept, j not,

    d[G]_k = sum over kept i, i'  u_i A_ii' v_i'
           + sum u_i v_j (s_i^2 A_ij + s_i s_j A_ji) / (s_i^2 - s_j^2)
           + sum u_j v_i (s_i^2 A_ji + s_i s_j A_ij) / (s_i^2 - s_j^2),

where v_j includes directions in which G is zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Decomposed:
    """A matrix G [m, n] and its singular value decomposition, through which no derivative passes.

    Attributes:
        matrix: G, differentiable.
        left: U [m, r].
        values: s [r], falling.
        right: V [n, r].
    """

    matrix: Tensor
    left: Tensor
    values: Tensor
    right: Tensor

    def leading(self, share: Tensor | float) -> Tensor:
        """Return 1 at the fewest leading values that hold a share of the squared size, 0 elsewhere, [r]."""
        energy = self.values.square()
        before = energy.cumsum(-1) - energy
        kept: Tensor = before < share * energy.sum()
        first = torch.arange(len(self.values), device=energy.device) == 0
        return (kept | first).to(energy)

    def entropy(self) -> Tensor:
        """Return the entropy of the singular values as shares, in units of its largest value: in [0, 1]."""
        share = self.values / self.values.sum().clamp(min=torch.finfo(self.values.dtype).tiny)
        most = torch.log(torch.tensor(float(max(2, len(self.values))), device=share.device, dtype=share.dtype))
        entropy: Tensor = -torch.special.xlogy(share, share).sum() / most
        return entropy


def decomposed(matrix: Tensor) -> Decomposed:
    """Decompose a matrix [m, n]."""
    left, values, right = torch.linalg.svd(matrix.detach(), full_matrices=False)
    return Decomposed(matrix, left, values, right.mT)


def truncated(part: Decomposed, kept: Tensor) -> Tensor:
    """Return a matrix at lower rank, with its first derivative.

    Args:
        part: the matrix, decomposed.
        kept: 1 at the singular values to keep, 0 elsewhere, [r].
    """
    change = part.matrix - part.matrix.detach()
    squares = part.values.square()
    gaps = squares.unsqueeze(1) - squares.unsqueeze(0)
    floor = torch.finfo(squares.dtype).eps * squares.amax() + torch.finfo(squares.dtype).tiny
    safe = torch.where(gaps.abs() < floor, torch.where(gaps < 0, -floor, floor), gaps)
    inner = part.left.mT @ change @ part.right
    products = part.values.unsqueeze(1) * part.values.unsqueeze(0)
    rows, columns = kept.unsqueeze(1), kept.unsqueeze(0)
    mixed = (
        rows * columns * inner
        + rows * (1 - columns) * (squares.unsqueeze(1) * inner + products * inner.mT) / safe
        - columns * (1 - rows) * (squares.unsqueeze(0) * inner + products * inner.mT) / safe
    )
    outside = change - (change @ part.right) @ part.right.mT
    below = change - part.left @ (part.left.mT @ change)
    low = (part.left * (part.values * kept)) @ part.right.mT
    return (
        low
        + part.left @ mixed @ part.right.mT
        + (part.left * kept) @ (part.left.mT @ outside)
        + ((below @ part.right) * kept) @ part.right.mT
    )
