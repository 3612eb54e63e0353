"""What single layers hold: the reading of their entries alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from fedseal.information.linear import LinearUpload
from fedseal.information.reading import decibels

_LEADING = 96


def layer_names(model: nn.Module) -> dict[str, list[str]]:
    """Return the trainable parameters of each layer by the layer's name, in the model's order."""
    layers: dict[str, list[str]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            layers.setdefault(name.rpartition(".")[0] or name, []).append(name)
    return layers


def leading_layers(linear: LinearUpload, layers: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return each layer's reading within the prior's leading directions of variation, in dB.

    For models too large to read layer by layer: figures to compare layers by. What lies across these directions
    disturbs nothing here, and counts as unknown. One pass forward per direction serves all layers.
    """
    prior, dtype = linear.prior, linear.map.point.dtype
    count = min(max(1, _LEADING // linear.images), prior.basis.shape[1])
    order = prior.along.argsort(descending=True)[:count]
    axes = (prior.basis[:, order] * prior.along[order].sqrt()).T
    directions = torch.zeros(linear.images * count, linear.unknowns, dtype=torch.float64)
    for image in range(linear.images):
        block = slice(image * prior.pixels, (image + 1) * prior.pixels)
        directions[image * count : (image + 1) * count, block] = axes
    slopes = linear.slopes(directions) / linear.sigma.to(dtype)
    parts = dict(zip(linear.names, torch.split(slopes, list(linear.sizes), dim=1), strict=True))
    variances = prior.along[order].repeat(linear.images)
    across = (prior.total - float(prior.along[order].sum())) * linear.images
    result = {}
    for layer, names in layers.items():
        gram = sum(parts[name].double() @ parts[name].double().T for name in names)
        left = torch.linalg.inv(gram + torch.eye(len(directions), dtype=torch.float64)).diagonal()
        result[layer] = decibels((float(left @ variances) + across) / linear.pixels)
    return result
