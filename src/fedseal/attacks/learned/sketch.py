"""Updates as short vectors: tensor by tensor, small tensors as they are, large ones folded with random signs.

Folding adds up entries i, i + q, i + 2q, ... of a tensor, each with a random sign, into q numbers. Inner products keep
their expectation (count sketch, Charikar et al. 2002), so kernels of sketches estimate kernels of updates. Every tensor
has a range of its own, so that it can be weighed against the others afterwards.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors


class Sketch:
    """A linear map from updates to vectors of at most `most` entries.

    Args:
        like: tensors of the shapes of an update.
        most: length of the result, at most; but for one entry per tensor.
        seed: of the signs.
    """

    def __init__(self, like: Tensors, most: int, seed: int = 0) -> None:
        self._lengths = dict(zip(like, _shares([t.numel() for t in like.values()], most), strict=True))
        self._signs = {
            name: _signs(tensor.numel(), seed, name).to(tensor.device)
            for name, tensor in like.items()
            if tensor.numel() > self._lengths[name]
        }

    @property
    def lengths(self) -> tuple[int, ...]:
        """The length of each tensor's range, in the model's order."""
        return tuple(self._lengths.values())

    def __call__(self, updates: Tensors) -> Tensor:
        """Return the sketches [n, D] of updates stacked [n, ...] per parameter, in single precision."""
        return torch.cat([self._fold(name, updates[name].flatten(1).float()) for name in self._lengths], 1)

    def _fold(self, name: str, values: Tensor) -> Tensor:
        length = self._lengths[name]
        if name not in self._signs:
            return values
        signed = values * self._signs[name]
        padded = torch.nn.functional.pad(signed, (0, -signed.shape[1] % length))
        return padded.reshape(len(padded), -1, length).sum(1)


def _signs(count: int, seed: int, name: str) -> Tensor:
    return torch.randint(2, (count,), generator=generator(seed, "sketch", name)).float().mul_(2).sub_(1)


def _shares(sizes: list[int], most: int) -> list[int]:
    """Deal `most` entries out: small tensors get what they have, the rest is split evenly among the large ones."""
    shares = dict.fromkeys(range(len(sizes)), 1)
    left, waiting = max(most, len(sizes)), sorted(range(len(sizes)), key=lambda index: sizes[index])
    while waiting:
        index = waiting.pop(0)
        shares[index] = min(sizes[index], max(1, left // (len(waiting) + 1)))
        left -= shares[index]
    return [shares[index] for index in range(len(sizes))]


def tensor_units(sketches: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Scale each tensor's range of [n, D] to norm 1, so that every layer counts alike; ranges of zeros stay zero."""
    return torch.cat([unit(part) for part in torch.split(sketches, list(lengths), 1)], 1)


def unit(vectors: Tensor) -> Tensor:
    """Scale rows [n, D] to norm 1; zeros stay zero."""
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors / norms.clamp(min=math.sqrt(torch.finfo(vectors.dtype).tiny))
