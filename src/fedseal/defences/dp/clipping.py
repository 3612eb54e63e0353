"""Clipping per sample, with Opacus' arithmetic: factor min(1, C / (norm + 1e-6))."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedseal.core.tensors import Tensors

Clipping: TypeAlias = Literal["flat", "per-tensor"]
"""Whether a sample's gradient is clipped as one vector or tensor by tensor."""


def clip_factors(grads: Tensors, bound: float, clipping: Clipping) -> dict[str, Tensor]:
    """Return min(1, bound / (norm + 1e-6)) of each sample, [B] per tensor; one and the same for all tensors if flat."""
    norms = {name: sample_norms(grad) for name, grad in grads.items()}
    if clipping == "flat":
        joint = torch.linalg.vector_norm(torch.stack(list(norms.values()), dim=1), dim=1)
        norms = dict.fromkeys(norms, joint)
    return {name: (bound / (norm + 1e-6)).clamp(max=1.0) for name, norm in norms.items()}


def clipped_sum(grads: Tensors, bound: float, clipping: Clipping = "flat") -> dict[str, Tensor]:
    """Clip per-sample gradients [B, ...] and add them up; in single precision at least."""
    factors = clip_factors(grads, bound, clipping)
    return {
        name: torch.einsum("i,i...->...", factors[name], grad.to(factors[name].dtype)) for name, grad in grads.items()
    }


def sample_norms(grad: Tensor) -> Tensor:
    """Return the L2 norm of each sample's gradient [B, ...], in single precision at least."""
    wide = grad.to(torch.promote_types(grad.dtype, torch.float32))
    norms: Tensor = torch.linalg.vector_norm(wide.reshape(len(wide), math.prod(wide.shape[1:])), dim=-1)
    return norms


def clip_lone_sample(gradient: Tensors, bound: float, clipping: Clipping) -> Tensors:
    """Clip the gradient of a batch of one, as the client did."""
    factors = clip_factors({name: tensor.unsqueeze(0) for name, tensor in gradient.items()}, bound, clipping)
    return {name: tensor * factors[name].squeeze(0) for name, tensor in gradient.items()}
