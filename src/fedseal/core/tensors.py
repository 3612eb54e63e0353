"""Named tensors: the one container for parameters, gradients and updates, and the checks done on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from fedseal.core.errors import InputError

Tensors: TypeAlias = Mapping[str, Tensor]
"""Tensors by parameter name, in the model's own order."""


def flatten(tensors: Tensors) -> Tensor:
    """Concatenate all tensors into one vector of shape [N]."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors.values()])


def unflatten(vector: Tensor, like: Tensors) -> dict[str, Tensor]:
    """Cut a vector [N] into tensors with the names and shapes of `like`; the inverse of `flatten`."""
    parts = torch.split(vector, [tensor.numel() for tensor in like.values()])
    return {name: part.view_as(tensor) for (name, tensor), part in zip(like.items(), parts, strict=True)}


def is_finite(tensor: Tensor) -> bool:
    """Return whether no entry is NaN or infinite.

    Those pass on to a sum, which is twenty times cheaper than to look at every entry; only large ones overflow it too.
    """
    return math.isfinite(tensor.detach().sum()) or bool(torch.isfinite(tensor).all())


def check_finite(tensors: Tensors, what: str) -> None:
    """Refuse NaN and infinity, naming the first tensor that holds one."""
    for name, tensor in tensors.items():
        if not is_finite(tensor):
            bad = int((~torch.isfinite(tensor)).sum())
            raise InputError(
                f"{what}: tensor {name!r} holds {bad} value(s) that are NaN or infinite.",
                hint="Check the learning rate and the loss that produced it.",
            )


def check_real(tensors: Tensors, what: str) -> None:
    """Refuse what no gradient is made of: nothing at all, whole numbers, flags, complex numbers; naming the first."""
    if not tensors:
        raise InputError(f"{what} holds no tensors.", hint="Give it the model's trainable parameters.")
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise InputError(
                f"{what}: tensor {name!r} is {tensor.dtype}, not real numbers.",
                hint="Counters and other integers do not belong in an update.",
            )


def check_like(tensors: Tensors, like: Tensors, what: str) -> None:
    """Refuse missing, unexpected or misshapen tensors and foreign dtypes, naming the first that is wrong."""
    missing, unexpected = [n for n in like if n not in tensors], [n for n in tensors if n not in like]
    if missing or unexpected:
        raise InputError(
            f"{what}: tensor {(missing or unexpected)[0]!r} is {'missing' if missing else 'not a parameter'} "
            f"({len(missing)} missing, {len(unexpected)} unexpected).",
            hint="Names must be those of the model's trainable parameters.",
        )
    for name, expected in like.items():
        got = tensors[name]
        if got.shape != expected.shape:
            raise InputError(
                f"{what}: tensor {name!r} has shape {list(got.shape)}, the model's is {list(expected.shape)}.",
                hint="Use the update of this very model.",
            )
        if got.dtype != expected.dtype:
            raise InputError(
                f"{what}: tensor {name!r} is {got.dtype}, the model's is {expected.dtype}.",
                hint="Convert the update to the model's dtype first.",
            )
