"""Signs of tampering in the weights themselves: no data needed.

Every function takes weights as [rows, inputs] and returns a number that is larger the less honest they look, or None
where the layer is too small to tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor, nn

from fedseal.core.seeds import generator

_FEW_ROWS = 8
_FEW_INPUTS = 32
_COMPANIONS = 4
_ROWS_AT_MOST = 1024
_ZERO = 1e-3
_PROBES = 16


def parallel_rows(weight: Tensor, bias: Tensor | None) -> float | None:
    """Return the cosine to which five rows with five different biases point the same way, at best."""
    rows, width = weight.shape
    if rows < _FEW_ROWS or width < _FEW_INPUTS or bias is None:
        return None
    stride = max(1, math.ceil(rows / _ROWS_AT_MOST))
    weight, bias = weight[::stride].double(), bias[::stride].double()
    norms = weight.norm(dim=1)
    kept = norms > _ZERO * norms.max()
    if int(kept.sum()) <= _COMPANIONS:
        return None
    directions = weight[kept] / norms[kept].unsqueeze(1)
    offsets = bias[kept] / norms[kept]
    cosines = directions @ directions.T
    near = cosines.topk(_COMPANIONS + 1, dim=1)
    biases = offsets[near.indices].sort(1).values
    distinct = (biases.diff(dim=1) != 0).all(1)
    return float(torch.where(distinct, near.values[:, -1], -1.0).max())


def balanced_rows(weight: Tensor) -> float | None:
    """Return by how many deviations more rows than chance allows have equally many negative and positive weights."""
    imbalance = _imbalance(weight)
    if imbalance is None:
        return None
    width = weight.shape[1]
    rows = len(imbalance)
    balanced = imbalance.abs() <= (1.0 if width % 2 else 0.0)
    chance = math.exp(math.lgamma(width + 1) - 2 * math.lgamma(width / 2 + 1) - width * math.log(2))
    chance = min(2 * chance if width % 2 else chance, 0.5)
    expected = chance * rows
    return float((balanced.sum() - expected) / math.sqrt(expected * (1 - chance)))


def even_signs(weight: Tensor) -> float | None:
    """Return how much closer than chance the rows' counts of signs are to balance: 0 at chance, 1 at exact balance."""
    imbalance = _imbalance(weight)
    if imbalance is None or len(imbalance) < 4 * _FEW_ROWS:
        return None
    return 1 - float(imbalance.square().mean().sqrt()) / math.sqrt(weight.shape[1])


def _imbalance(weight: Tensor) -> Tensor | None:
    """Return positive minus negative weights of each row that is not zero, [rows]."""
    weight = weight[weight.abs().amax(1) > 0]
    if len(weight) < _FEW_ROWS or weight.shape[1] < _FEW_INPUTS:
        return None
    return weight.sign().sum(1)


def bare_kernels(weight: Tensor) -> float | None:
    """Return the share of energy a kernel's largest tap holds, averaged over kernels; a zero kernel counts as bare."""
    if weight.shape[1] < 9:
        return None
    squares = weight.double().square()
    energy = squares.sum(1)
    if float(energy.max()) == 0:
        return None
    largest = squares.amax(1) / energy.clamp(min=1e-300)
    return float(torch.where(energy < (_ZERO**2) * energy.max(), 1.0, largest).mean())


def identity_products(blocks: Sequence[Tensor]) -> float | None:
    """Return how near to a multiple of the identity A' B comes for two of the square blocks [D, D], at best.

    It is asked of random vectors z, as the mean squared cosine of z and A' B z: 1 for the identity, 1 / D by chance.
    Queries and keys of one rotated basis are found as those that are the identity themselves.
    """
    best: float | None = None
    for one, other in combinations(blocks, 2):
        if one.shape != other.shape or len(one) < _FEW_INPUTS or not (bool(one.any()) and bool(other.any())):
            continue
        drawn = torch.randn(len(one), _PROBES, generator=generator(0, "probes"), dtype=torch.float64)
        cosines = nn.functional.cosine_similarity(one.double().cpu().T @ (other.double().cpu() @ drawn), drawn, dim=0)
        value = float(cosines.square().mean())
        best = value if best is None else max(best, value)
    return best


def square_blocks(module: nn.Module) -> list[Tensor]:
    """Return the square parts [D, D] of a module's own linear layers, several stacked in one among them."""
    found = []
    for child in module.children():
        layer = getattr(child, "base_layer", child)  # of one with adapters
        if isinstance(layer, nn.Linear) and layer.out_features % layer.in_features == 0:
            found += list(torch.split(layer.weight.detach(), layer.in_features))
    return found


def outsized(weight: Tensor) -> float:
    """Return the decimal logarithm of the largest absolute weight."""
    return math.log10(max(float(weight.abs().max()), 1e-300))


def silenced_classes(weight: Tensor) -> float | None:
    """Return how much weaker the second strongest class of a last layer [classes, features] is than the strongest."""
    norms = weight.double().norm(dim=1).sort(descending=True).values
    return None if float(norms[0]) == 0 else 1 - float(norms[1] / norms[0])


def single_direction(weight: Tensor, features: Tensor) -> float | None:
    """Return how much a last layer [classes, F] serves one direction, and one sample of its input features [B, F].

    The first factor is the share of the layer's energy that one direction holds, its mean row taken off: classes lie in
    many directions, about 1 / (classes - 1) each at first weights. The second is by how much the largest features
    exceed the median's: 0 if all are equally long, 1 if one sample is alone. A model that is trained together with a
    decoder, to let a single sample through, has both; honest training at most one.
    """
    if len(weight) < _FEW_ROWS or weight.shape[1] < _FEW_ROWS or len(features) <= _COMPANIONS:
        return None
    energy = torch.linalg.svdvals(weight.double() - weight.double().mean(0)).square()
    norms = features.flatten(1).double().norm(dim=1)
    if float(energy.sum()) == 0 or float(norms.max()) == 0:
        return None
    return float(energy[0] / energy.sum() * (1 - norms.median() / norms.max()))


def as_rows(module: nn.Module) -> Tensor | None:
    """Return the weight of a linear or convolutional layer as [rows, inputs]."""
    if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return module.weight.detach().flatten(1)
    return None
